"""KServe through a gateway before a real server: each response equals that of a direct stream, output for output."""

import itertools
import json
import queue
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from loadtest.fresh_gateway import RunningGateway
from penstock.frontend.audio_file import read_audio
from penstock_client import AsyncClient, Client, StreamOptions, Transcript
from penstock_gateway.kserve.model import DATATYPES
from tests.helpers.golden import golden_utterances
from trials.server.running import RunningServer, running_gateway

pytestmark = pytest.mark.server
LIBRARIES = {"grpc": triton_grpc, "http": triton_http}
PATHS = [utterance.path for utterance in golden_utterances()]
SAMPLES = np.concatenate([read_audio(path, 16_000) for path in PATHS])
CHOICES = (
    {},
    {"decoder": "alsd", "n_best": 3, "boosted_phrases": '["seven", ["nine", 1.5]]'},
    {"endpoint_silence_ms": 300, "endpoint_state": "carry"},
    {"decoder": "aes", "n_best": 2, "endpoint_silence_ms": 400, "endpoint_longest_s": 5},
)
OUTPUTS = [name for name in DATATYPES if name != "WORD_SPEAKER"]  # which only a gateway has
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def gateway(server: RunningServer) -> Iterator[RunningGateway]:
    with running_gateway(server, "--endpoint-silence-ms", "800", "--endpoint-state", "reset") as addresses:
        yield addresses


def infer(library, client, name: str, samples: np.ndarray, **more) -> dict[str, np.ndarray]:
    audio = library.InferInput("AUDIO", [1, len(samples)], "FP32")
    audio.set_data_from_numpy(samples[None])
    outputs = [library.InferRequestedOutput(name) for name in OUTPUTS]
    reply = client.infer("asr", [audio], outputs=outputs, sequence_id=name, **more)
    return {name: reply.as_numpy(name) for name in OUTPUTS}


def play(protocol: str, url: str, options: dict, seed: int) -> list[dict[str, np.ndarray]]:
    """The responses to a stream of random requests, one after the other."""
    chance, library, name = random.Random(seed), LIBRARIES[protocol], f"play-{next(_NUMBERS)}"
    found, start = [], 0
    with library.InferenceServerClient(url) as client:
        while start < len(SAMPLES):
            part = SAMPLES[start : start + chance.choice([0, 1, 1600, 8960, 16_000, 40_000, 200_000])]
            parameters = options if not found else {"finalize": True} if chance.random() < 0.1 else {}
            start += len(part)
            found.append(
                infer(
                    library, client, name, part, sequence_start=not found, sequence_end=start == len(SAMPLES),
                    parameters=parameters,
                )
            )  # fmt: skip
    return found


def comparable(response: dict[str, np.ndarray], near: Callable = list) -> dict[str, tuple]:
    """The outputs; `near` is applied to confidences and scores, whose last digits depend on the batch."""
    found = {name: (array.dtype.kind, array.shape, array.tolist()) for name, array in response.items()}
    for name in ("WORD_CONFIDENCE", "ALTERNATIVE_SCORES"):
        found[name] = (response[name].shape, near(response[name][0].tolist()))
    words = [word for text in response["ALTERNATIVE_WORDS"][0] for word in json.loads(text)]
    found["ALTERNATIVE_WORDS"] = ([word[:3] for word in words], near([word[3] for word in words]))
    return found


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("protocol", LIBRARIES)
def test_responses_are_those_of_a_direct_stream(server: RunningServer, gateway: RunningGateway, protocol: str, options):
    seed = 2 * CHOICES.index(options) + (protocol == "http")
    direct = play(protocol, server.url(protocol), options, seed)
    through = play(protocol, getattr(gateway, protocol), options, seed)
    for expected, found in zip(direct, through, strict=True):
        assert comparable(found) == comparable(expected, partial(pytest.approx, abs=1e-3))


def transcripts(url: str, protocol: str, **options) -> list[Transcript]:
    """The transcripts of all recordings at the same time, each sent ahead of its answers."""

    def one(path: Path) -> Transcript:
        with Client(url, protocol, timeout_s=60, **options) as client:
            return client.transcribe(path, options=StreamOptions(decoder="alsd", n_best=2))

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, PATHS))


@pytest.mark.parametrize(("protocol", "align"), [("grpc", True), ("http", False)])
def test_transcripts_of_the_client(server: RunningServer, gateway: RunningGateway, protocol: str, align: bool):
    direct = transcripts(server.url(protocol), protocol)
    through = transcripts(getattr(gateway, protocol), protocol, align=align)
    for expected, found in zip(direct, through, strict=True):
        assert (found.text, found.tokens, found.timestamps) == (expected.text, expected.tokens, expected.timestamps)
        assert [word[:3] for word in map(astuple, found.words)] == [word[:3] for word in map(astuple, expected.words)]
        assert [one.text for one in found.alternatives] == [one.text for one in expected.alternatives]


@pytest.mark.anyio
@pytest.mark.parametrize("protocol", LIBRARIES)
async def test_the_client_for_asyncio_with_segments(server: RunningServer, gateway: RunningGateway, protocol: str):
    async def texts(url: str) -> list[tuple]:
        async with AsyncClient(url, protocol, timeout_s=60) as client, client.open_stream() as stream:
            for start in range(0, len(SAMPLES), 1600):
                await stream.send(SAMPLES[start : start + 1600])
                if start == 64_000:
                    await stream.finalize()
            await stream.finish()
            return [(result.segment, result.text, result.is_final) async for result in stream if result.is_final]

    assert await texts(getattr(gateway, protocol)) == await texts(server.url(protocol))


def test_streams_of_a_call_of_tritonclient(server: RunningServer, gateway: RunningGateway):
    def play_two(url: str) -> list[bytes]:
        answers: queue.SimpleQueue = queue.SimpleQueue()
        halves = np.array_split(SAMPLES, 2)
        with triton_grpc.InferenceServerClient(url) as client:
            client.start_stream(lambda result, error: answers.put(error or result.as_numpy("TEXT")[0, 0]))
            for start in range(0, len(halves[0]), 8000):
                for number, half in enumerate(halves, start=1):
                    part = half[start : start + 8000]
                    audio = triton_grpc.InferInput("AUDIO", [1, len(part)], "FP32")
                    audio.set_data_from_numpy(part[None])
                    client.async_stream_infer(
                        "asr", [audio], sequence_id=number, sequence_start=start == 0,
                        sequence_end=start + 8000 >= len(halves[0]),
                    )  # fmt: skip
            client.stop_stream()
        return [answers.get_nowait() for _ in range(answers.qsize())]

    found = play_two(gateway.grpc)
    assert found == play_two(server.url("grpc")) and found[-1]
