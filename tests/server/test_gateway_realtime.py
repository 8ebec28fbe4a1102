"""Realtime before a real server in the dialects of Riva and vLLM, and its items. OpenAI's words: test_gateway.py."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import websockets

from loadtest.fresh_gateway import RunningGateway
from penstock.frontend.audio_file import read_audio
from tests.helpers.golden import golden_utterances

pytestmark = [pytest.mark.server, pytest.mark.anyio]
PATHS = [utterance.path for utterance in golden_utterances()]
RATE_HZ = 16_000
APPEND_SAMPLES = 1600
COMPLETED = "conversation.item.input_audio_transcription.completed"


def samples_of(path: Path) -> np.ndarray:
    """16-bit samples [n]."""
    return np.round(read_audio(path, RATE_HZ) * 32768).clip(-32768, 32767).astype("<i2")


class Connection:
    """A client of one dialect that sends recordings at a pace: 0 is full speed, 1 real time, 4 four times as fast."""

    def __init__(self, socket, pace: float):
        self._socket = socket
        self._pace = pace

    async def send(self, kind: str, **fields) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def receive(self, kind: str):
        while True:
            event = json.loads(await self._socket.recv())
            assert "error" not in event["type"] and not event["type"].endswith("failed"), event
            if event["type"] == kind:
                return event

    async def send_audio(
        self, *paths: Path, after_each: str | None = None, append_samples: int = APPEND_SAMPLES, pause_s: float = 0
    ) -> None:
        pause = np.zeros(int(pause_s * RATE_HZ), "<i2")
        pcm = np.concatenate([part for path in paths for part in (samples_of(path), pause)])
        begin_s = asyncio.get_running_loop().time()
        for start in range(0, len(pcm), append_samples):
            if self._pace:
                due_s = begin_s + start / RATE_HZ / self._pace
                await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            audio = base64.b64encode(pcm[start : start + append_samples].tobytes()).decode()
            await self.send("input_audio_buffer.append", audio=audio)
            if after_each:
                await self.send(after_each)


@asynccontextmanager
async def connected(gateway: RunningGateway, pace: float) -> AsyncIterator[Connection]:
    url = f"ws://{gateway.http}/v1/realtime?intent=transcription"
    async with websockets.connect(url, open_timeout=60, max_queue=None) as socket:
        yield Connection(socket, pace)


async def riva_words(gateway: RunningGateway, path: Path, pace: float = 0):
    async with connected(gateway, pace) as client:
        session = {"input_audio_params": {"sample_rate_hz": RATE_HZ, "num_channels": 1}}
        await client.send("transcription_session.update", session=session)
        await client.send_audio(path, after_each="input_audio_buffer.commit")
        await client.send("input_audio_buffer.done")
        completed = await client.receive(COMPLETED)
    assert completed["is_last_result"]
    return [(w["word"], w["start_time"], w["end_time"]) for w in completed["words_info"]["words"]]


async def vllm_words(gateway: RunningGateway, path: Path, pace: float = 0):
    """Without times, which the dialect does not have."""
    async with connected(gateway, pace) as client:
        await client.send("session.update", model="")
        await client.send("input_audio_buffer.commit")
        await client.send_audio(path)
        await client.send("input_audio_buffer.commit", final=True)
        done = await client.receive("transcription.done")
    return done["text"].split()


@pytest.mark.parametrize("pace", [0, 4])
async def test_words(gateway, direct, pace):
    """All recordings in both dialects at the same time."""
    found = await asyncio.gather(*(riva_words(gateway, path, pace) for path in PATHS))
    assert found == [direct[path] for path in PATHS]
    texts = await asyncio.gather(*(vllm_words(gateway, path, pace) for path in PATHS))
    assert texts == [[text for text, _, _ in direct[path]] for path in PATHS]


async def items_in_pauses(
    gateway: RunningGateway, append_samples: int, pace: float = 0
) -> list[list[tuple[str, float, float]]]:
    """The words of each item where turn detection ends them; a commit after the last pause has no words."""
    async with connected(gateway, pace) as client:
        detection = {"type": "server_vad", "silence_duration_ms": 600}
        form = {"type": "audio/pcm", "rate": RATE_HZ}
        session = {"audio": {"input": {"format": form, "turn_detection": detection}}}
        await client.send("session.update", session=session | {"include": ["item.input_audio_transcription.words"]})
        await client.send_audio(*PATHS[:3], append_samples=append_samples, pause_s=2.0)
        await client.send("input_audio_buffer.commit")
        found = []
        while not found or found[-1]:
            completed = await client.receive(COMPLETED)
            found.append([(word["word"], word["start"], word["end"]) for word in completed["words"]])
    return found


async def test_items_depend_on_the_audio_alone(gateway):
    first = await items_in_pauses(gateway, 320)
    assert len(first) == len(PATHS[:3]) + 1
    assert first[-1] == []
    starts = [start for item in first for _, start, _ in item]
    assert starts == sorted(starts)
    assert await items_in_pauses(gateway, 16_000) == first
    assert await items_in_pauses(gateway, 1600, pace=4) == first
