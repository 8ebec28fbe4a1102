"""Endpoints through a real server: segments depend on the audio alone, for each protocol, client and kind."""

import asyncio

import numpy as np
import pytest

from penstock.recognizer import StreamingRecognizer
from penstock_client import AsyncClient, BatchedClient, StreamOptions, Transcript
from tests.helpers.segments import recognize, segments, speech_with_pauses
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server

DECODERS = ({}, {"decoder": "alsd", "n_best": 2})


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return speech_with_pauses()


def outcome(transcript: Transcript) -> list[tuple]:
    """Texts, words, times and alternatives of the segments."""
    return [
        (
            segment.text,
            [(word.text, word.start_ms, word.end_ms) for word in segment.words],
            [one.text for one in segment.alternatives],
        )
        for segment in transcript.segments
    ]


def in_process(recognizer: StreamingRecognizer, samples: np.ndarray, options: StreamOptions) -> list[tuple]:
    entries = recognize(recognizer, samples, [slice(None)], options.parameters())
    return [(text, words, alternatives) for text, _, words, _, alternatives in segments(entries)]


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    return StreamingRecognizer(bundled_model, CONTEXT)


async def batched(client: BatchedClient, samples: np.ndarray, options: StreamOptions) -> Transcript:
    transcript = Transcript()
    async with await client.open_stream(options) as stream:

        async def push() -> None:
            for start in range(0, len(samples), 2080):
                await stream.push(samples[start : start + 2080])
            await stream.finish()

        pushing = asyncio.create_task(push())
        async for result in stream:
            transcript.add(result)
        await pushing
    return transcript


async def test_segments_are_those_of_the_recognizer_whatever_the_client(server: RunningServer, recognizer, speech):
    """Many streams at once, in requests of three sizes."""
    signals = [speech, speech[50_000:]]
    options = [
        StreamOptions(endpoint_silence_ms=400, endpoint_state=state, **decoder)
        for state, decoder in zip(("reset", "carry"), DECODERS, strict=True)
    ]
    rows = [(signal, one) for signal in signals for one in options]
    grpc, http = (AsyncClient(server.url(name), name, timeout_s=60) for name in ("grpc", "http"))
    async with grpc, http, BatchedClient(server.url("grpc"), timeout_s=60) as many:
        found = await asyncio.gather(
            *(
                client.transcribe(signal, request_ms=request_ms, options=one)
                for client, request_ms in ((grpc, 20), (http, 700))
                for signal, one in rows
            ),
            *(batched(many, signal, one) for signal, one in rows),
        )
    expected = [in_process(recognizer, signal, one) for signal, one in rows]
    assert min(map(len, expected)) > 1
    assert [outcome(transcript) for transcript in found] == expected * 3
