"""Fake servers that tell speakers apart, and what tests look at in the words of a stream."""

import asyncio
import contextlib
import math
import threading

from client.tests.helpers.batched_client import WAIT_S
from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.fakes import FakeRecognizer
from penstock_client import StreamOptions
from penstock_client.speakers.track import Waits

ON = StreamOptions(speakers="on")
AUDIO = voices(0, 2, 2, 1, 1, 1, 2, 2)
EXPECTED = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
"""A word has 50 ms. In silence, all are equal: the first."""
NEVER_LATE, AT_ONCE = Waits(math.inf, math.inf), Waits(math.inf, 0.0)


@contextlib.contextmanager
def held(server, after=0):
    """The model of a server answers no more than these samples until the event is set."""
    answer, goes_on, taken = server.speakers.answer, threading.Event(), 0

    def wait(request):
        nonlocal taken
        taken += request.samples.size
        if taken > after:
            goes_on.wait()
        return answer(request)

    server.speakers.answer = wait
    try:
        yield goes_on
    finally:
        goes_on.set()


async def told(stream):
    async def read():
        return [result async for result in stream]

    return await asyncio.wait_for(read(), WAIT_S)


def speakers_of(results):
    return [speaker for result in results for speaker in result.word_speakers]


@contextlib.contextmanager
def serving(kind):
    recognizer = FakeRecognizer(max_streams=64)
    recognizer.server_parameters |= {"first_chunk_samples": "1600", "chunk_samples": "1600"}
    server = kind(recognizer)
    try:
        yield server
    finally:
        server.close()
