"""Requests of different streams wait for each other and share batches, as long as the server was told."""

import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.audio import read_audio
from tests.golden import golden_utterances
from tests.server.conftest import RunningServer, running_server
from tests.server.raw_stream import RawStream

pytestmark = pytest.mark.server
DELAY_MS, STREAMS, PIECES, PIECE_SAMPLES = 250, 4, 3, 1600


def batches(server: RunningServer, member: str) -> int:
    """Runs of a member so far."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return int(re.search(rf'^nv_inference_exec_count{{model="{member}",version="1"}} (\d+)$', text, re.M)[1])


def test_streams_share_batches(bundled_model):
    samples = read_audio(golden_utterances()[0].path, 16000)
    more = {"PENSTOCK_QUEUE_DELAY_MS": str(DELAY_MS)}
    for server in running_server(bundled_model, max_streams=STREAMS, idle_s=30.0, more=more):
        streams = [RawStream(server.url("grpc"), f"together-{i}") for i in range(STREAMS)]
        before = batches(server, "features")
        with ThreadPoolExecutor(STREAMS) as pool:
            for piece in range(PIECES):
                part = samples[piece * PIECE_SAMPLES :][:PIECE_SAMPLES]
                started = time.monotonic()
                ends = {"start": piece == 0, "end": piece == PIECES - 1}
                list(pool.map(lambda stream, part=part, ends=ends: stream.send(part, **ends), streams))
                assert time.monotonic() - started > 0.9 * DELAY_MS / 1000
        assert PIECES <= batches(server, "features") - before < PIECES * STREAMS / 2
        for stream in streams:
            stream.close()
