"""A batch of requests to a stage after `features`: each has a ticket, and may be rejected as a whole."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.errors import StreamError
from penstock.pipeline.slots.ticket import Ticket

Given = TypeVar("Given")
Reply = TypeVar("Reply")


def answer_requests(
    tickets: Sequence[Ticket | StreamError],
    inputs: Sequence[Given],
    problem_with: Callable[[Ticket, Given], StreamError | None],
    process: Callable[[list[tuple[Ticket, Given]]], Sequence[Reply]],
) -> list[Reply | StreamError]:
    """Returns for each request its reply, or why it is rejected: the error in place of its ticket, or its problem.

    problem_with: why an input is not that of its ticket; process: the replies to all good requests, maybe none.
    """
    problems: list[StreamError | None] = []
    good: list[tuple[Ticket, Given]] = []
    for ticket, given in zip(tickets, inputs, strict=True):
        problem = ticket if isinstance(ticket, StreamError) else problem_with(ticket, given)
        problems.append(problem)
        if problem is None and isinstance(ticket, Ticket):
            good.append((ticket, given))
    # Also without a good request: the encoder of an offline model works in each call.
    replies = iter(process(good))
    return [next(replies) if problem is None else problem for problem in problems]
