"""A client process of a gateway that uses one protocol until it is killed. One is started per kill."""

import asyncio
import io
from contextlib import suppress
from multiprocessing.connection import Connection

import httpx2
import numpy as np
import soundfile
import soxr

from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_clients import CONNECTION_ERRORS, Speech, Texts, realtime_texts, riva_texts

RIVA, REALTIME, CAPTIONS, UPLOAD, STREAMED_UPLOAD = "riva", "realtime", "captions", "upload", "streamed upload"
KINDS = (RIVA, REALTIME, CAPTIONS, UPLOAD, STREAMED_UPLOAD)
RATE_HZ = 16_000
_REPEATS = 15
"""Of the audio, which makes it longer than a client lives."""


def use_gateway_until_killed(gateway: RunningGateway, kind: str, samples: np.ndarray, going: Connection) -> None:
    """Sends int16 `samples` at 16 kHz again and again. Live clients say that they are going once they have text, an
    upload before it begins. Ends if its connection does."""
    with suppress(*CONNECTION_ERRORS):
        asyncio.run(_use(gateway, kind, np.tile(samples, _REPEATS), going))


async def _use(gateway: RunningGateway, kind: str, samples: np.ndarray, going: Connection) -> None:
    if kind in (UPLOAD, STREAMED_UPLOAD):
        going.send("going")
        return await _upload(gateway, samples, kind == STREAMED_UPLOAD)
    is_going = False
    async for _ in _live_texts(gateway, kind, samples):
        if not is_going:
            going.send("going")
        is_going = True


def _live_texts(gateway: RunningGateway, kind: str, samples: np.ndarray) -> Texts:
    if kind == RIVA:
        return riva_texts(gateway, Speech(samples))
    if kind == REALTIME:
        return realtime_texts(gateway, Speech(samples))
    page = {"origin": f"http://{gateway.http}", "subprotocols": ["realtime"]}
    return realtime_texts(gateway, Speech(soxr.resample(samples, RATE_HZ, 24_000), 24_000), **page)


async def _upload(gateway: RunningGateway, samples: np.ndarray, is_streamed: bool) -> None:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    url = f"http://{gateway.http}/v1/audio/transcriptions"
    async with httpx2.AsyncClient(timeout=600, verify=False) as client:
        await client.post(url, files={"file": file.getvalue()}, data={"stream": str(is_streamed).lower()})
