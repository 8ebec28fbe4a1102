"""Requests of different streams share batches within the batching delay."""

import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.frontend.audio_file import read_audio
from penstock.serving.model_repository import SPEAKER_ENSEMBLE
from penstock_client.batched.rows import END, START, Row
from tests.helpers.golden import golden_utterances
from trials.server.raw_stream import BatchedConnection, RawStream, errors_of
from trials.server.running import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.nightly]
DELAY_MS, STREAMS, REQUESTS, REQUEST_SAMPLES, ROWS = 250, 4, 3, 1600, 16


def batches(server: RunningServer, model: str) -> int:
    """Batches of a model so far."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return int(re.search(rf'^nv_inference_exec_count{{model="{model}",version="1"}} (\d+)$', text, re.M)[1])


@pytest.fixture(scope="module")
def server(bundled_model, speaker_bundle) -> Iterator[RunningServer]:
    more = {"PENSTOCK_QUEUE_DELAY_MS": str(DELAY_MS), "PENSTOCK_SPEAKERS": str(speaker_bundle.directory)}
    yield from running_server(bundled_model, max_streams=ROWS, idle_s=30.0, more=more)


def test_streams_share_batches(server):
    samples = read_audio(golden_utterances()[0].path, 16000)
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


def test_requests_of_many_streams_share_batches_whatever_their_options_and_audio(server):
    """16 requests at once: each other one has PCM, each fourth one no audio; at the start each third has options."""
    with BatchedConnection(server.url("grpc"), "mixed") as connection:
        for flags in (START, 0, END):
            before = batches(server, "features")
            for i in range(ROWS):
                samples = np.zeros(0 if i % 4 == 3 else 100 * i, np.float32)
                options = '{"decoder": "alsd", "n_best": 2}' if i % 3 == 0 and flags == START else None
                connection.send([Row(i + 1, samples, flags, options)], as_pcm=i % 2 == 0)
            for _ in range(ROWS):
                assert not errors_of(connection.receive())
            assert batches(server, "features") - before <= 2


def test_requests_with_speakers_share_the_batches_of_others(server):
    """Eight requests each, in turn. Inputs that are sent only sometimes would end a batch at each."""
    url, half, stages = server.url("grpc"), ROWS // 2, ("features", "encoder", "decoder")
    with BatchedConnection(url, "plain") as plain, BatchedConnection(url, "asking", SPEAKER_ENSEMBLE) as asking:
        for flags in (START, 0, END):
            before = {model: batches(server, model) for model in stages}
            options = '{"speakers": "on"}' if flags == START else None
            for i in range(half):
                row = Row(i + 1, np.zeros(8960, np.float32), flags)
                plain.send([row])
                asking.send([row._replace(options=options)])
            for connection in (plain, asking):
                for _ in range(half):
                    assert not errors_of(connection.receive())
            # The decoder waits for no speakers: it may have one batch more.
            assert all(batches(server, model) - count <= 3 for model, count in before.items())
