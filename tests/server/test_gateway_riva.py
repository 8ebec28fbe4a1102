"""The gateway's Riva protocol before a real server: its words are those of the direct client, streamed and whole."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from penstock.frontend.audio_file import read_audio
from penstock_client import Client
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE
from tests.helpers.golden import golden_utterances
from trials.server.gateway import running_gateway
from trials.server.running import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.anyio]
PATHS = [utterance.path for utterance in golden_utterances()]
RATE_HZ = 16_000
MESSAGE_SAMPLES = 1600
OTHER_STREAMS = 15
CONFIG = {"verbatim_transcripts": True, "enable_word_time_offsets": True}
Words = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def address(server: RunningServer) -> Iterator[str]:
    with running_gateway(server) as addresses:
        yield addresses.grpc


@pytest.fixture(scope="module")
def direct(server: RunningServer) -> dict[Path, Words]:
    """The words of the direct client, with times in ms."""
    with Client(server.url("grpc"), timeout_s=60) as client:
        return {path: [(w.text, w.start_ms, w.end_ms) for w in client.transcribe(path).words] for path in PATHS}


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


def words_of(results) -> Words:
    """The words of all segments, which their transcripts repeat."""
    best = [result.alternatives[0] for result in results]
    found = [(word.word, word.start_time, word.end_time) for each in best for word in each.words]
    assert "".join(each.transcript for each in best).split() == [text for text, _, _ in found]
    return found


async def streamed(channel: grpc.aio.Channel, path: Path, pace: float = 0) -> Words:
    """Words of a stream of 100 ms messages at a pace: 0 is full speed, 1 real time, 4 four times as fast."""
    pcm = np.round(read_audio(path, RATE_HZ) * 32768).clip(-32768, 32767).astype("<i2")

    async def messages():
        yield riva.StreamingRecognizeRequest(streaming_config={"config": CONFIG, "interim_results": True})
        begin_s = asyncio.get_running_loop().time()
        for start in range(0, len(pcm), MESSAGE_SAMPLES):
            if pace:
                await asyncio.sleep(begin_s + start / RATE_HZ / pace - asyncio.get_running_loop().time())
            yield riva.StreamingRecognizeRequest(audio_content=pcm[start : start + MESSAGE_SAMPLES].tobytes())

    call = channel.stream_stream(
        f"/{SERVICE}/StreamingRecognize",
        request_serializer=riva.StreamingRecognizeRequest.SerializeToString,
        response_deserializer=riva.StreamingRecognizeResponse.FromString,
    )
    results = [result async for response in call(messages()) for result in response.results]
    return words_of([result for result in results if result.is_final])


async def whole(channel: grpc.aio.Channel, path: Path) -> Words:
    """Words of the FLAC file as one message."""
    call = channel.unary_unary(
        f"/{SERVICE}/Recognize",
        request_serializer=riva.RecognizeRequest.SerializeToString,
        response_deserializer=riva.RecognizeResponse.FromString,
    )
    response = await call(riva.RecognizeRequest(config=CONFIG, audio=path.read_bytes()))
    return words_of(response.results)


async def test_words_alone(channel, direct):
    for path in PATHS:
        assert await streamed(channel, path) == direct[path]
        assert await whole(channel, path) == direct[path]


@pytest.mark.parametrize("pace", [4, 1])
async def test_words_at_a_pace(channel, direct, pace):
    found = await asyncio.gather(*(streamed(channel, path, pace) for path in PATHS))
    assert found == list(direct.values())


async def test_words_beside_other_streams(channel, direct):
    async def others(number: int) -> None:
        while True:
            await streamed(channel, PATHS[number % len(PATHS)])

    busy = [asyncio.create_task(others(number)) for number in range(OTHER_STREAMS)]
    try:
        for calls in ([whole(channel, path) for path in PATHS], [streamed(channel, path, pace=4) for path in PATHS]):
            assert await asyncio.gather(*calls) == list(direct.values())
        assert await streamed(channel, PATHS[0]) == direct[PATHS[0]]
    finally:
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    assert all(task.cancelled() for task in busy), "no other stream failed"


async def test_options_reach_the_server(channel):
    """Alternatives come from a beam search of the server; what it rejects is named."""
    call = channel.unary_unary(
        f"/{SERVICE}/Recognize",
        request_serializer=riva.RecognizeRequest.SerializeToString,
        response_deserializer=riva.RecognizeResponse.FromString,
    )
    audio = PATHS[0].read_bytes()
    response = await call(riva.RecognizeRequest(config={**CONFIG, "max_alternatives": 3}, audio=audio))
    alternatives = response.results[0].alternatives
    assert len({each.transcript for each in alternatives}) == len(alternatives) == 3
    contexts = [{"phrases": ["Rubout", "\u8a9e"], "boost": 20}]  # the model writes neither capitals nor that letter
    fitted = call(riva.RecognizeRequest(config={**CONFIG, "speech_contexts": contexts}, audio=audio))
    assert (await fitted).results
    assert dict(await fitted.initial_metadata())["penstock-ignored"] == r"speech_contexts.phrases '\u8a9e'"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        contexts = [{"phrases": ["x" * 201], "boost": 20}]
        await call(riva.RecognizeRequest(config={**CONFIG, "speech_contexts": contexts}, audio=audio))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "phrase" in error.value.details()
