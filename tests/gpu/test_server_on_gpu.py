"""A real server on a CUDA device: with parts of 100 ms, batches mix requests with and without a chunk; all decoders."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from penstock import StreamingRecognizer
from penstock_client import AsyncClient, BatchedClient, StreamOptions, Transcript, read_audio
from tests.helpers.golden import golden_utterances
from trials.server.running import CONTEXT, RunningServer, running_server

pytestmark = pytest.mark.gpu

PART_SAMPLES = 1600
OPTIONS = (
    {}, {"boosted_phrases": [["june eighteenth", 3.0]]}, {"decoder": "alsd"}, {"decoder": "aes", "beam_size": 2},
    {"decoder": "ctc"}, {"decoder": "ctc_beam"},
)  # fmt: skip


@pytest.fixture(scope="module", params=["no_graphs", "auto", "full_graph"])
def server(request, bundled_model) -> Iterator[RunningServer]:
    variables = {"DEVICE": "cuda", "PRECISION": "float32", "CUDA_GRAPHS": request.param, "QUEUE_DELAY_MS": "5"}
    yield from running_server(bundled_model, 96, 30.0, {f"PENSTOCK_{name}": text for name, text in variables.items()})


@pytest.fixture(scope="module")
def signals() -> list[np.ndarray]:
    return [read_audio(utterance.path) for utterance in golden_utterances()]


@pytest.fixture(scope="module")
def expected(bundled_model, signals) -> list[str]:
    """The texts of the CPU, each signal with all options."""
    recognizer = StreamingRecognizer(bundled_model, CONTEXT, max_streams=1)
    return [recognizer.open_stream(options=one).finish(samples).text for samples in signals for one in OPTIONS]


async def direct(client: AsyncClient, samples: np.ndarray, options: StreamOptions) -> str:
    async with client.open_stream(options=options) as stream:
        for start in range(0, len(samples), PART_SAMPLES):
            await stream.send(samples[start : start + PART_SAMPLES])
        await stream.finish()
        async for _ in stream:
            pass
        return stream.transcript.text


async def batched(client: BatchedClient, samples: np.ndarray, options: StreamOptions) -> str:
    transcript = Transcript()
    async with await client.open_stream(options) as stream:
        for start in range(0, len(samples), PART_SAMPLES):
            await stream.push(samples[start : start + PART_SAMPLES])
        await stream.finish()
        async for result in stream:
            transcript.add(result)
    return transcript.text


@pytest.mark.parametrize(("kind", "transcribe"), [(AsyncClient, direct), (BatchedClient, batched)])
def test_streams_beside_each_other_have_the_words_of_the_cpu(
    server: RunningServer, signals, expected, kind, transcribe
):
    async def run() -> list[str]:
        async with kind(server.url("grpc")) as client:
            return await asyncio.gather(
                *(transcribe(client, samples, StreamOptions(**one)) for samples in signals for one in OPTIONS)
            )

    assert asyncio.run(run()) == expected
