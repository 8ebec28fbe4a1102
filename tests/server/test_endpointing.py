"""Endpoints through a real server: segments depend on the audio alone, for each protocol, client and kind."""

import asyncio

import numpy as np
import pytest

from penstock.recognizer import StreamingRecognizer
from penstock_client import AsyncClient, BatchedClient, Client, StreamOptions, Transcript
from tests.helpers.segments import speech_with_pauses
from trials.server.running import CONTEXT, RunningServer

pytestmark = [pytest.mark.server, pytest.mark.anyio]

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
    with recognizer.open_stream(options=options.parameters()) as stream:
        entries = [*stream.push(samples).entries, *stream.finish().entries]
    words = [(entry.segment, word.text, word.start_ms, word.end_ms) for entry in entries for word in entry.words]
    return [
        (final.text, [word[1:] for word in words if word[0] == final.segment], [one.text for one in final.alternatives])
        for final in entries
        if final.is_final
    ]


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    return StreamingRecognizer(bundled_model, CONTEXT)


@pytest.mark.parametrize("state", ["reset", "carry"])
@pytest.mark.parametrize("decoder", DECODERS, ids=["greedy", "alsd"])
def test_segments_are_those_of_the_recognizer_whatever_the_pieces(
    server: RunningServer, recognizer, speech, decoder, state
):
    options = StreamOptions(**decoder, endpoint_silence_ms=400, endpoint_no_speech_ms=2400, endpoint_state=state)
    expected = in_process(recognizer, speech, options)
    assert len(expected) > 2
    with Client(server.url("grpc")) as client, Client(server.url("http"), "http") as http:
        for request_ms in (20, 100, 1000, 30_000):
            found = client.transcribe(speech, request_ms=request_ms, options=options)
            assert outcome(found) == expected, request_ms
            assert found.is_complete and all(segment.is_final for segment in found.segments)
        assert outcome(http.transcribe(speech, request_ms=700, options=options)) == expected


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


async def test_other_clients_and_many_streams_at_once(server: RunningServer, recognizer, speech):
    signals = [speech, speech[50_000:], speech[:90_000]]
    options = [
        StreamOptions(endpoint_silence_ms=400, endpoint_state=state, **decoder)
        for state in ("reset", "carry")
        for decoder in DECODERS
    ]
    rows = [(signal, one) for signal in signals for one in options]
    async with AsyncClient(server.url("grpc")) as client, BatchedClient(server.url("grpc")) as many:
        found = await asyncio.gather(
            *(client.transcribe(signal, request_ms=130, options=one) for signal, one in rows),
            *(batched(many, signal, one) for signal, one in rows),
        )
    expected = [in_process(recognizer, signal, one) for signal, one in rows]
    assert [outcome(transcript) for transcript in found] == expected * 2
