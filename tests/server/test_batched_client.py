"""`BatchedClient` against a real server: the words of direct streams, limits, and lost streams."""

import asyncio

import numpy as np
import pytest

from penstock_client import (
    BatchedClient,
    BatchedStream,
    Client,
    ServerFullError,
    StreamError,
    StreamOptions,
    Transcript,
    read_audio,
)
from tests.helpers.golden import golden_utterances
from trials.server.running import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.anyio]

PART_SAMPLES = 1600


@pytest.fixture(scope="module")
def signals() -> list[np.ndarray]:
    return [read_audio(utterance.path) for utterance in golden_utterances()]


def exact(transcript: Transcript) -> tuple:
    """All but the confidences, whose last bits depend on the batch."""
    words = [(word.text, word.start_ms, word.end_ms) for word in transcript.words]
    segments = [(segment.text, segment.is_final) for segment in transcript.segments if segment.text]
    return segments, words, transcript.tokens, transcript.timestamps


async def transcribe(client: BatchedClient, samples: np.ndarray, border: int, options=None) -> Transcript:
    """In two segments, of which the first ends with the part that holds sample `border`."""
    transcript = Transcript()
    async with await client.open_stream(options) as stream:
        for start in range(0, len(samples), PART_SAMPLES):
            await stream.push(samples[start : start + PART_SAMPLES])
            if start <= border < start + PART_SAMPLES:
                await stream.end_segment()
        await stream.finish()
        finals = []
        async for result in stream:
            transcript.add(result)
            finals += [(result.answers_finalize, result.is_last)] if result.is_final else []
        assert finals == [(True, False), (False, True)]
    return transcript


@pytest.mark.parametrize("decoder", ["greedy", "alsd"])
async def test_the_words_of_direct_streams(server: RunningServer, signals, decoder):
    options = StreamOptions(decoder=decoder)
    expected = []
    with Client(server.url("grpc")) as client:
        for samples in signals:
            with client.open_stream(options=options) as stream:
                end = (len(samples) // 2 // PART_SAMPLES + 1) * PART_SAMPLES
                stream.finalize(samples[:end])
                stream.finish(samples[end:])
                list(stream)
                expected.append(exact(stream.transcript))
    async with BatchedClient(server.url("grpc")) as client:
        found = await asyncio.gather(
            *(transcribe(client, samples, len(samples) // 2, options) for samples in signals * 4)
        )
    assert [exact(transcript) for transcript in found] == expected * 4


async def text_of(stream: BatchedStream) -> str:
    transcript = Transcript()
    async for result in stream:
        transcript.add(result)
    return transcript.text


async def test_a_stream_that_finds_no_slot_and_one_with_wrong_options_fail_alone(small_server: RunningServer, signals):
    async with BatchedClient(small_server.url("grpc")) as client:
        with pytest.raises(StreamError, match="no language model is loaded"):
            await (await client.open_stream(StreamOptions(lm_weight=0.5))).accepted()
        streams = [await client.open_stream() for _ in range(small_server.max_streams)]
        for stream in streams:
            await stream.accepted()
        late = await client.open_stream()
        with pytest.raises(ServerFullError, match=f"all {small_server.max_streams} stream slots"):
            await late.accepted()
        for stream in streams:
            await stream.finish(signals[0])
        texts = [await text_of(stream) for stream in streams]
    with Client(small_server.url("grpc")) as client:
        assert texts == [client.transcribe(signals[0]).text] * small_server.max_streams
