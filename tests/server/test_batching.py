"""Requests of different streams share batches within the batching delay."""

import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.frontend.audio_file import read_audio
from tests.helpers.golden import golden_utterances
from trials.server.raw_stream import RawStream
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]
DELAY_MS, STREAMS, REQUESTS, REQUEST_SAMPLES = 250, 4, 3, 1600


def batches(server: RunningServer, model: str) -> int:
    """Batches of a model so far."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return int(re.search(rf'^nv_inference_exec_count{{model="{model}",version="1"}} (\d+)$', text, re.M)[1])


def test_streams_share_batches(bundled_model):
    samples = read_audio(golden_utterances()[0].path, 16000)
    more = {"PENSTOCK_QUEUE_DELAY_MS": str(DELAY_MS)}
    for server in running_server(bundled_model, max_streams=STREAMS, idle_s=30.0, more=more):
        streams = [RawStream(server.url("grpc"), f"together-{i}") for i in range(STREAMS)]
        before = batches(server, "features")
        with ThreadPoolExecutor(STREAMS) as pool:
            for number in range(REQUESTS):
                part = samples[number * REQUEST_SAMPLES :][:REQUEST_SAMPLES]
                started = time.monotonic()
                ends = {"start": number == 0, "end": number == REQUESTS - 1}
                list(pool.map(lambda stream, part=part, ends=ends: stream.send(part, **ends), streams))
                assert time.monotonic() - started > 0.9 * DELAY_MS / 1000
        assert REQUESTS <= batches(server, "features") - before < REQUESTS * STREAMS / 2
        for stream in streams:
            stream.close()
