"""`finalize` through a real server: each segment is as it is in this process, and the stream goes on."""

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

from gateway.tests.contract.drivers import Realtime, RivaStream
from penstock.frontend.audio_file import read_audio
from penstock.recognizer import NO_SAMPLES, StreamingRecognizer
from penstock_client import BatchedClient, Client
from tests.helpers.golden import golden_utterances
from tests.helpers.streaming import after_speech
from trials.server.raw_stream import RawStream, Reply
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server

OPTIONS = ({}, {"decoder": "alsd", "n_best": 2}, {"boosted_phrases": '["rubout", "erase"]', "boost": 3.0})


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    return StreamingRecognizer(bundled_model, CONTEXT, max_streams=4)


@pytest.fixture(scope="module")
def signals() -> list[np.ndarray]:
    return [read_audio(utterance.path, 16000) for utterance in golden_utterances()]


def stream_segments(server: RunningServer, protocol: str, number: int, segments: list[np.ndarray]) -> list[Reply]:
    """The final reply of each segment, with the words and tokens of all its replies, which are checked."""
    chance, options, finals = random.Random(number), OPTIONS[number % len(OPTIONS)], []
    with RawStream(server.url(protocol), f"segments-{protocol}-{number}", protocol) as stream:
        is_first = True
        for i, segment in enumerate(segments):
            ends = sorted({*(chance.randint(0, len(segment)) for _ in range(4)), len(segment)})
            replies = []
            for start, end in zip([0, *ends], ends, strict=False):
                is_last = end == len(segment)
                is_end = is_last and i == len(segments) - 1
                parameters = (options if is_first else {}) | ({"finalize": True} if is_last and not is_end else {})
                replies.append(stream.send(segment[start:end], is_first, is_end, parameters))
                is_first = False
            assert {reply.segment for reply in replies} == {i}
            assert [reply.is_final for reply in replies] == [False] * (len(replies) - 1) + [True]
            words, tokens = ([x for r in replies for x in getattr(r, name)] for name in ("words", "tokens"))
            last = replies[-1]
            finals.append(Reply(i, last.text, True, last.processed_s, tuple(words), tuple(tokens), last.alternatives))
    return finals


def expected(recognizer: StreamingRecognizer, number: int, segments: list[np.ndarray]) -> list[Reply]:
    with recognizer.open_stream(options=OPTIONS[number % len(OPTIONS)]) as stream:
        results = [stream.finalize(segment) for segment in segments[:-1]] + [stream.finish(segments[-1])]
    return [Reply.of_result(result) for result in results]


def test_every_segment_of_many_streams_at_once(server: RunningServer, recognizer, signals):
    chance = random.Random(3)
    streams = [
        [chance.choice(signals)[chance.randint(0, 4000) :] for _ in range(chance.randint(1, 3))] for _ in range(12)
    ]
    streams[0].insert(1, NO_SAMPLES)
    with ThreadPoolExecutor(len(streams)) as pool:
        jobs = [pool.submit(stream_segments, server, ("grpc", "http")[i % 2], i, s) for i, s in enumerate(streams)]
        for i, (job, segments) in enumerate(zip(jobs, streams, strict=True)):
            assert job.result(timeout=120) == expected(recognizer, i, segments)


@pytest.mark.parametrize("driver", [RivaStream, Realtime])
async def test_the_client_s_end_right_after_speech_through_a_gateway(gateway, recognizer, signals, driver):
    for audio in islice(after_speech(signals[0]), 6):
        call = driver(gateway, key=None)
        call.send(audio)
        call.end_segment()
        call.send(np.zeros(8000, np.float32))
        call.end()
        outcome = await call.ended()
        assert not outcome.code and outcome.texts[0] == recognizer.open_stream().finish(audio).text


async def test_options_change_in_running_speech_as_a_commit_ends_a_segment(server, gateway, recognizer, signals):
    """Through `asr` and `asr_batch`; the library is the reference."""
    audio, changes = np.concatenate(signals), {"boosted_phrases": [["rubout", 2.0]], "endpoint_longest_s": 30}
    places = range(24_000, len(audio), 40_000)
    with recognizer.open_stream() as stream:
        parts = np.split(audio, places)
        entries = [e for part in parts[:-1] for e in stream.finalize(part, changes).entries]
        expected = [entry.text for entry in [*entries, *stream.finish(parts[-1]).entries] if entry.is_final]
    with Client(server.url("grpc"), timeout_s=60) as client, client.open_stream() as stream:
        for part in parts[:-1]:
            stream.finalize(part, changes)
        stream.finish(parts[-1])
        assert [result.text for result in stream if result.is_final] == expected
    async with BatchedClient(server.url("grpc"), timeout_s=60) as client, await client.open_stream() as stream:
        for part in parts[:-1]:
            await stream.push(part)
            await stream.change(changes)
        await stream.finish(parts[-1])
        results = [result async for result in stream if result.is_final]
        assert [result.text for result in results] == expected
        assert [result.is_endpoint for result in results] == [True] * len(places) + [False]
