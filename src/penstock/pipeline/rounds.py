"""Order within a stream where requests of it share a batch."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


def process_in_rounds(
    process: Callable[[list[_Request]], list[_Answer]],
    requests: Sequence[_Request],
    stream_of: Callable[[_Request], Hashable],
) -> list[_Answer]:
    """Returns the answers of `process`, which takes requests of different streams, to any requests in order.

    Round k has the k-th request of each stream. So a stream's requests are processed in their order, and requests of
    different streams still share a batch.
    """
    rounds: list[list[int]] = []
    seen: dict[Hashable, int] = {}
    for i, request in enumerate(requests):
        stream = stream_of(request)
        number = seen[stream] = seen.get(stream, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(i)
    answers: dict[int, _Answer] = {}
    for rows in rounds:
        answers.update(zip(rows, process([requests[i] for i in rows]), strict=True))
    return [answers[i] for i in range(len(requests))]
