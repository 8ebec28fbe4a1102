"""Clients in processes of their own that stream until they are killed. Without torch: one is started per kill."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from itertools import cycle
from multiprocessing.connection import Connection

import httpx2
import numpy as np
import soundfile
import soxr

from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_clients import CONNECTION_ERRORS, Text, Texts, Word, realtime_texts, riva_texts
from penstock_client import AsyncClient, AsyncStream, BatchedClient, ClientError
from trials.server.raw_stream import RawStream

RIVA, REALTIME, CAPTIONS, KSERVE = "riva", "realtime", "captions", "kserve"
UPLOAD, STREAMED_UPLOAD = "upload", "streamed upload"
KINDS = (RIVA, REALTIME, CAPTIONS, KSERVE, UPLOAD, STREAMED_UPLOAD)
RATE_HZ = 16_000
_REPEATS = 45
"""They make the audio longer than a client lives."""


def stream_until_killed(url: str, name: str, samples: np.ndarray, going: Connection) -> None:
    """Streams `samples` endlessly, in requests of 100 ms."""
    stream = RawStream(url, name)
    for number, start in enumerate(cycle(range(0, len(samples), 1600))):
        stream.send(samples[start : start + 1600], start=number == 0)
        if number == 0:
            going.send("going")
        time.sleep(0.02)


def stream_batched_until_killed(url: str, streams: int, samples: np.ndarray, going: Connection) -> None:
    """Streams `samples` endlessly in each of several streams, over one call of `asr_batch`."""

    async def stream() -> None:
        async with BatchedClient(url) as client:
            opened = [await client.open_stream() for _ in range(streams)]
            for one in opened:
                await one.accepted()
            going.send("going")
            for start in cycle(range(0, len(samples), 1600)):
                for one in opened:
                    await one.push(samples[start : start + 1600])
                await asyncio.sleep(0.02)

    asyncio.run(stream())


def use_gateway_until_killed(gateway: RunningGateway, kind: str, samples: np.ndarray, going: Connection) -> None:
    """Sends int16 `samples` at 16 kHz again and again. Live clients say that they are going once they have text, an
    upload before it begins. Ends if its connection does."""
    with suppress(httpx2.HTTPError, ClientError, *CONNECTION_ERRORS):
        asyncio.run(_use(gateway, kind, np.tile(samples, _REPEATS), going))


async def _use(gateway: RunningGateway, kind: str, samples: np.ndarray, going: Connection) -> None:
    if kind in (UPLOAD, STREAMED_UPLOAD):
        going.send("going")
        return await _upload(gateway, samples, kind == STREAMED_UPLOAD)
    texts = live_texts(gateway, kind, samples)
    await anext(texts)
    going.send("going")
    async for _ in texts:
        pass


def live_texts(gateway: RunningGateway, kind: str, samples: np.ndarray) -> Texts:
    """The texts of a stream of int16 `samples` at 16 kHz, at the pace of speech."""
    if kind == RIVA:
        return riva_texts(gateway.grpc, spoken(samples))
    if kind == KSERVE:
        return _kserve_texts(gateway.grpc, samples)
    if kind == REALTIME:
        return realtime_texts(gateway.http, spoken(samples))
    page = {"origin": f"http://{gateway.http}", "subprotocols": ["realtime"]}
    parts = spoken(soxr.resample(samples, RATE_HZ, 24_000), 24_000)
    return realtime_texts(gateway.http, parts, 24_000, **page)


async def _kserve_texts(address: str, samples: np.ndarray) -> Texts:
    async def send(stream: AsyncStream) -> None:
        async for part in spoken(samples):
            await stream.send(part)

    async with AsyncClient(address, timeout_s=60) as client, client.open_stream() as stream:
        sending = asyncio.create_task(send(stream))
        try:
            async for result in stream:
                yield Text(result.text, result.is_final)
        finally:
            sending.cancel()


async def spoken(
    samples: np.ndarray, rate_hz: int = RATE_HZ, begin_s: float | None = None
) -> AsyncIterator[np.ndarray]:
    """Parts of 100 ms, each at the moment when its last sample is spoken; what was spoken before now comes at once.

    begin_s: of the monotonic clock (now).
    """
    begin_s, size = time.monotonic() if begin_s is None else begin_s, rate_hz // 10
    for start in range(0, len(samples), size):
        part = samples[start : start + size]
        await asyncio.sleep(begin_s + (start + len(part)) / rate_hz - time.monotonic())
        yield part


async def words_of(texts: Texts) -> tuple[Word, ...]:
    """The words of all final texts."""
    async with aclosing(texts):
        return tuple([word async for text in texts if text.is_final for word in text.words])


async def _upload(gateway: RunningGateway, samples: np.ndarray, is_streamed: bool) -> None:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    url = f"http://{gateway.http}/v1/audio/transcriptions"
    async with httpx2.AsyncClient(timeout=600, verify=False) as client:
        await client.post(url, files={"file": file.getvalue()}, data={"stream": str(is_streamed).lower()})
