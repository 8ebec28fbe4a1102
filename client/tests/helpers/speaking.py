"""Fake servers that tell speakers apart, and audio of two voices."""

import contextlib

from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.fakes import FakeRecognizer
from penstock_client import StreamOptions

ON = StreamOptions(speakers="on")
AUDIO = voices(0, 2, 2, 1, 1, 1, 2, 2)
EXPECTED = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
"""A word has 50 ms. In silence, all are equal: the first."""


@contextlib.contextmanager
def serving(kind):
    recognizer = FakeRecognizer(max_streams=64)
    recognizer.server_parameters |= {"first_chunk_samples": "1600", "chunk_samples": "1600"}
    server = kind(recognizer)
    try:
        yield server
    finally:
        server.close()
