"""`AsyncClient` against a real server, and what becomes of a slot when a stream of either client is cancelled."""

import asyncio
import time

import numpy as np
import pytest

from penstock.audio import read_audio
from penstock_client import (
    AsyncClient,
    AsyncStream,
    Client,
    ServerFullError,
    StreamClosedError,
    StreamError,
    StreamOptions,
)
from tests.golden import golden_utterances
from tests.server.conftest import CONTEXT, RunningServer
from tests.server.resources import read_metrics
from tests.server.voices import touch

pytestmark = pytest.mark.server

UTTERANCES = golden_utterances()
PIECE = 3200


def said(utterance) -> str:
    return utterance.greedy(CONTEXT).text


def audio(utterance) -> np.ndarray:
    return read_audio(utterance.path, 16000)


async def final_text(stream: AsyncStream) -> str:
    async for _ in stream:
        pass
    return stream.transcript.text


async def listen(client: AsyncClient, utterance) -> list:
    """All results of one utterance, sent and read by two tasks."""
    samples = audio(utterance)
    async with client.open_stream() as stream:

        async def talk() -> None:
            for start in range(0, len(samples), PIECE):
                await stream.send(samples[start : start + PIECE])
            await stream.finish()

        talking = asyncio.create_task(talk())
        results = [result async for result in stream]
        await talking
        return results


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_several_streams_at_once_over_one_client_have_partial_and_final_results(server: RunningServer, protocol):
    async def listen_to_all() -> list[list]:
        async with AsyncClient(server.url(protocol), protocol) as client:
            return await asyncio.gather(*(listen(client, utterance) for utterance in UTTERANCES))

    for utterance, results in zip(UTTERANCES, asyncio.run(listen_to_all()), strict=True):
        assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
        assert results[-1].text == said(utterance)
        partial = [result.text for result in results[:-1] if result.text]
        assert partial and all(results[-1].text.startswith(text) for text in partial)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_finalize_ends_a_segment_and_the_stream_goes_on(server: RunningServer, protocol):
    first, second = UTTERANCES[:2]

    async def talk() -> list[tuple[str, bool]]:
        async with AsyncClient(server.url(protocol), protocol) as client, client.open_stream() as stream:
            await stream.send(audio(first)[:PIECE])
            await stream.finalize(audio(first)[PIECE:])
            await stream.finish(audio(second))
            await final_text(stream)
            return [(segment.text, segment.is_final) for segment in stream.transcript.segments]

    assert asyncio.run(talk()) == [(said(first), True), (said(second), True)]


class Watcher:
    """Waits for a slot to be free again. A busy machine is given as long as ten looks take."""

    def __init__(self, server: RunningServer):
        self._server = server
        started_s = time.monotonic()
        self._live = self._look()
        self._longest_s = max(1.0, 10 * (time.monotonic() - started_s))

    def wait(self) -> None:
        """Until a stream fewer is live than at the beginning; AssertionError after a second."""
        deadline_s = time.monotonic() + self._longest_s
        while self._look() >= self._live:
            assert time.monotonic() < deadline_s, f"no slot is free after {self._longest_s:.1f} s"

    def _look(self) -> float:
        touch(self._server)  # the gauges are brought up to date by requests
        return read_metrics(self._server)["streams_live"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_a_stream_frees_its_slot_at_once(server: RunningServer, protocol):
    with Client(server.url(protocol), protocol) as client, client.open_stream() as stream:
        stream.send(audio(UTTERANCES[0])[:20000])
        assert stream.poll(wait_s=10)
        watcher = Watcher(server)
        stream.cancel()
        with pytest.raises(StreamClosedError):
            stream.poll(wait_s=1)
        watcher.wait()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_an_async_stream_frees_its_slot_at_once(server: RunningServer, protocol):
    async def talk_and_cancel() -> None:
        async with AsyncClient(server.url(protocol), protocol) as client, client.open_stream() as stream:
            await stream.send(audio(UTTERANCES[0])[:20000])
            assert await stream.poll(wait_s=10)
            watcher = await asyncio.to_thread(Watcher, server)
            stream.cancel()
            with pytest.raises(StreamClosedError):
                await stream.poll(wait_s=1)
            await asyncio.to_thread(watcher.wait)

    asyncio.run(talk_and_cancel())


def test_a_stream_that_finds_no_slot_is_refused_and_the_others_go_on(small_server: RunningServer):
    first = UTTERANCES[0]

    async def fill_and_ask_for_more() -> list[str]:
        async with AsyncClient(small_server.url("grpc")) as client:
            streams = [client.open_stream() for _ in range(small_server.max_streams)]
            for stream in streams:
                await stream.send(audio(first)[:PIECE])
            await asyncio.gather(*(stream.poll(wait_s=10) for stream in streams))
            with pytest.raises(ServerFullError, match=f"all {small_server.max_streams} stream slots are taken"):
                await client.transcribe(audio(first))
            for stream in streams:
                await stream.finish(audio(first)[PIECE:])
            return [await final_text(stream) for stream in streams]

    assert asyncio.run(fill_and_ask_for_more()) == [said(first)] * small_server.max_streams


def test_options_that_the_server_refuses_fail_their_stream_alone(server: RunningServer):
    async def ask() -> str:
        async with AsyncClient(server.url("grpc")) as client:
            with pytest.raises(StreamError, match="no language model is loaded"):
                await client.transcribe(audio(UTTERANCES[0]), options=StreamOptions(lm_weight=0.5))
            return (await client.transcribe(audio(UTTERANCES[0]))).text

    assert asyncio.run(ask()) == said(UTTERANCES[0])
