"""What the random tests of protocols share.

A case follows from its number alone, so a failure names the case that repeats it.
"""

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_gateway.stream.options import upstream_options

NIGHTLY_MESSAGES = int(os.environ.get("PENSTOCK_RANDOM_MESSAGES", "10000"))
"""Cases of the long random tests of a protocol; 100,000 take up to 25 minutes (CONTRIBUTING.md)."""
_CLIENTS, _CASES = 8, 40
"""Cases at the same time, and beside each call of a neighbour."""


class CheckedStreams(FakeStreams):
    """Also rejects the options that the server's client rejects."""

    async def open(self, options, key, protocol):
        """As `FakeStreams.open`."""
        upstream_options(options, None).parameters()
        return await super().open(options, key, protocol)


def check_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """No error and no traceback has been logged."""
    assert not [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info]
    assert "Traceback" not in capfd.readouterr().err


async def make_cases(
    gateway: Any,
    numbers: Iterable[int],
    messages: int,
    one: Callable[[int], Awaitable[tuple[Hashable, int]]],
    neighbour: Callable[[], Awaitable[None]],
) -> Counter:
    """Makes the cases of these numbers until `messages` are sent; returns how often each answer came.

    `one` makes a case, and returns its answer and the messages that it has sent. `neighbour` checks that the words of
    another client are unchanged.
    """
    answers: Counter = Counter()
    clients, left, sent = asyncio.Semaphore(_CLIENTS), iter(numbers), 0

    async def make(number: int) -> None:
        nonlocal sent
        async with clients:
            try:
                answer, count = await one(number)
            except Exception as error:
                raise AssertionError(f"case {number}: {error}") from error
        answers[answer] += 1
        sent += count

    while sent < messages and (cases := list(map(make, itertools.islice(left, _CASES)))):
        await asyncio.gather(neighbour(), *cases)
        while not all(stream.is_cancelled for stream in gateway.streams.opened):  # their clients did not wait
            await asyncio.sleep(0.005)
        gateway.streams.opened.clear()
    return answers
