"""Programs that never close their client end like any other, and free their streams."""

import gc
import subprocess
import sys

import pytest

from client.tests.helpers.fake_servers import eventually
from penstock_client import Client

PROGRAMS = {
    "transcribe": "client = Client(url, protocol)\nprint(client.transcribe(samples).text)",
    "a stream": "stream = Client(url, protocol).open_stream()\nstream.send(samples)\nprint(stream.poll(60)[0].text)",
    "asyncio": "client = AsyncClient(url, protocol)\nprint(asyncio.run(client.transcribe(samples)).text)",
}
START = """
import asyncio, sys
import numpy as np
from penstock_client import AsyncClient, Client
url, protocol = sys.argv[1:]
samples = np.zeros(800, np.float32)
"""


@pytest.mark.parametrize(
    ("program", "protocol"),
    [("transcribe", "http"), ("a stream", "grpc"), ("asyncio", "http"), ("asyncio", "grpc")],
    indirect=["protocol"],
)
def test_a_program_ends_without_closing_its_client(program, url, protocol, recognizer):
    command = [sys.executable, "-c", START + PROGRAMS[program], url, protocol]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout) == (0, "wörd0\n"), done.stderr
    eventually(lambda: not recognizer.received)


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_a_client_is_closed_once_nothing_refers_to_it(url, server):
    stream = Client(url).open_stream()
    gc.collect()
    stream.send([0.0])
    assert stream.poll(60) and server.live_calls == 1
    del stream
    gc.collect()
    eventually(lambda: not server.live_calls)
