"""`AsyncClient` against a real server, and the slot of a cancelled stream of either client."""

import asyncio
import time

import numpy as np
import pytest

from penstock.frontend.audio_file import read_audio
from penstock_client import AsyncClient, Client, StreamClosedError
from tests.helpers.golden import golden_utterances
from trials.server.recordings import send_empty_stream
from trials.server.resources import read_metrics
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server

UTTERANCES = golden_utterances()
REQUEST_SAMPLES = 3200


def recognized(utterance) -> str:
    return utterance.greedy(CONTEXT).text


def audio(utterance) -> np.ndarray:
    return read_audio(utterance.path, 16000)


async def stream_utterance(client: AsyncClient, utterance) -> list:
    """All results of one utterance, sent and read by two tasks."""
    samples = audio(utterance)
    async with client.open_stream() as stream:

        async def send() -> None:
            for start in range(0, len(samples), REQUEST_SAMPLES):
                await stream.send(samples[start : start + REQUEST_SAMPLES])
            await stream.finish()

        sending = asyncio.create_task(send())
        results = [result async for result in stream]
        await sending
        return results


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_several_streams_at_once_over_one_client_have_partial_and_final_results(server: RunningServer, protocol):
    async def stream_all() -> list[list]:
        async with AsyncClient(server.url(protocol), protocol) as client:
            return await asyncio.gather(*(stream_utterance(client, utterance) for utterance in UTTERANCES))

    for utterance, results in zip(UTTERANCES, asyncio.run(stream_all()), strict=True):
        assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
        assert results[-1].text == recognized(utterance)
        partial = [result.text for result in results[:-1] if result.text]
        assert partial and all(results[-1].text.startswith(text) for text in partial)


class Watcher:
    """Waits for a free slot, for ten times the duration of one reading: a busy machine is slow."""

    def __init__(self, server: RunningServer):
        self._server = server
        started_s = time.monotonic()
        self._live = self._read_live()
        self._longest_s = max(10.0, 10 * (time.monotonic() - started_s))

    def wait(self) -> None:
        """Waits until one stream fewer is live than at the beginning; AssertionError if that takes too long."""
        deadline_s = time.monotonic() + self._longest_s
        while self._read_live() >= self._live:
            assert time.monotonic() < deadline_s, f"no slot is free after {self._longest_s:.1f} s"

    def _read_live(self) -> float:
        send_empty_stream(self._server)  # requests update the gauges
        return read_metrics(self._server)["streams_live"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_a_stream_frees_its_slot_at_once(server: RunningServer, protocol):
    with Client(server.url(protocol), protocol) as client, client.open_stream() as stream:
        stream.send(audio(UTTERANCES[0])[:20000])
        assert stream.poll(wait_s=60)
        watcher = Watcher(server)
        stream.cancel()
        with pytest.raises(StreamClosedError):
            stream.poll(wait_s=1)
        watcher.wait()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_an_async_stream_frees_its_slot_at_once(server: RunningServer, protocol):
    async def send_and_cancel() -> None:
        async with AsyncClient(server.url(protocol), protocol) as client, client.open_stream() as stream:
            await stream.send(audio(UTTERANCES[0])[:20000])
            assert await stream.poll(wait_s=60)
            watcher = await asyncio.to_thread(Watcher, server)
            stream.cancel()
            with pytest.raises(StreamClosedError):
                await stream.poll(wait_s=1)
            await asyncio.to_thread(watcher.wait)

    asyncio.run(send_and_cancel())
