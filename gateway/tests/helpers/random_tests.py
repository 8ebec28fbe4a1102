"""Shared parts of the random tests of protocols.

A case follows from its number alone, so a failure names the case that repeats it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import pytest

from client.tests.helpers.event_loop import until
from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_gateway.stream.options import upstream_options

_CLIENTS, _CASES = 8, 40
"""Cases at the same time, and beside each call of a neighbour."""


class CheckedStreams(FakeStreams):
    """Also rejects the options that the server's client rejects."""

    async def open(self, options, key, protocol):
        """Opens as `FakeStreams.open`."""
        upstream_options(options, None).parameters()
        return await super().open(options, key, protocol)


def check_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """No error and no traceback has been logged."""
    assert not [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info]
    assert "Traceback" not in capfd.readouterr().err


async def make_cases(
    gateway: Any,
    numbers: Sequence[int],
    one: Callable[[int], Awaitable[Hashable]],
    neighbour: Callable[[], Awaitable[None]],
) -> Counter:
    """Makes the cases of these numbers; returns how often each answer came.

    `one` makes a case, and returns its answer. `neighbour` checks that the words of another client are unchanged.
    """
    answers: Counter = Counter()
    clients = asyncio.Semaphore(_CLIENTS)

    async def make(number: int) -> None:
        async with clients:
            try:
                answers[await one(number)] += 1
            except Exception as error:
                raise AssertionError(f"case {number}: {error}") from error

    for start in range(0, len(numbers), _CASES):
        await asyncio.gather(neighbour(), *map(make, numbers[start : start + _CASES]))
        await until(lambda: all(stream.is_cancelled for stream in gateway.streams.opened))  # their clients did not wait
        gateway.streams.opened.clear()
    return answers
