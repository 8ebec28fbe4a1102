"""Calls of the plugins of LiveKit and Pipecat, as a voice agent makes them, with a mute in the middle.

python agent_calls.py GRPC_ADDRESS HTTP_ADDRESS FOLDER MUTE_S WORDS: FOLDER has `recording.wav`, which has WORDS words;
each call sends it, nothing for MUTE_S, and it again. Prints a JSON object for each call: its name, and the words or the
error. Runs in the environment `.venv-compat`.
"""

import asyncio
import json
import sys
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import stt as livekit
from livekit.plugins import nvidia, openai
from pipecat.frames.frames import EndFrame, Frame, InputAudioRawFrame, TranscriptionFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.nvidia.stt import NvidiaSTTService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService

RATE_HZ = 16_000
PIECE_BYTES = 3200  # 100 ms
SILENCE = bytes(2 * 2 * RATE_HZ)
"""After each recording: a pause that ends its segment."""
DEADLINE_S = 120.0
MODEL = "whisper-1"
VAD = {"type": "server_vad", "silence_duration_ms": 800}


class Told:
    """The words of final results, which come while audio is sent."""

    def __init__(self, words: int):
        self.words: list[str] = []
        self._of_recording = words
        self._more = asyncio.Condition()

    async def add(self, text: str) -> None:
        async with self._more:
            self.words += text.split()
            self._more.notify_all()

    async def wait(self, recordings: int) -> None:
        """Returns when this number of recordings is told."""
        async with self._more:
            await self._more.wait_for(lambda: len(self.words) >= recordings * self._of_recording)


class Parts:
    """The audio of a call: `parts(told)` yields pieces, faster than real time, and nothing during the mute."""

    def __init__(self, recording: bytes, mute_s: float):
        self._audio, self._mute_s = recording + SILENCE, mute_s

    async def __call__(self, told: Told) -> AsyncIterator[bytes]:
        for piece in self._pieces():
            yield piece
        await told.wait(1)
        await asyncio.sleep(self._mute_s)
        for piece in self._pieces():
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        return (self._audio[start : start + PIECE_BYTES] for start in range(0, len(self._audio), PIECE_BYTES))


Call = Callable[[Any, Parts, Told], Awaitable[None]]


async def livekit_call(plugin: livekit.STT, parts: Parts, told: Told) -> None:
    """Does what an AgentSession does with a plugin that streams."""
    async with plugin.stream() as stream:

        async def read() -> None:
            async for event in stream:
                if event.type is livekit.SpeechEventType.FINAL_TRANSCRIPT:
                    await told.add(event.alternatives[0].text)

        reading = asyncio.create_task(read())
        async for piece in parts(told):
            stream.push_frame(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))
        await told.wait(2)
        reading.cancel()


class Listener(FrameProcessor):
    """The processor after a Pipecat service."""

    def __init__(self, told: Told):
        super().__init__()
        self._told = told

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            await self._told.add(frame.text)
        await self.push_frame(frame, direction)


async def pipecat_call(service: FrameProcessor, parts: Parts, told: Told) -> None:
    """A pipeline of the service alone."""
    params = PipelineParams(audio_in_sample_rate=RATE_HZ)
    task = PipelineTask(Pipeline([service, Listener(told)]), params=params, idle_timeout_secs=None)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    async for piece in parts(told):
        await task.queue_frame(InputAudioRawFrame(piece, RATE_HZ, 1))
    await told.wait(2)
    await task.queue_frame(EndFrame())
    await running


async def calls(grpc: str, http: str, parts: Parts, words: int) -> AsyncIterator[dict[str, str]]:
    """The result of each call. They run at the same time."""
    url = f"http://{http}/v1"
    async with aiohttp.ClientSession() as session:
        realtime = openai.STT(base_url=url, api_key="none", model=MODEL, use_realtime=True, turn_detection=VAD)
        realtime._session = session  # the worker of an agent gives it one
        no_function = {"function_id": "", "model_name": ""}
        settings = OpenAIRealtimeSTTService.Settings(model=MODEL)
        made = {
            "livekit-plugins-nvidia": (
                livekit_call, nvidia.STT(server=grpc, use_ssl=False, model="", function_id=""),
            ),
            "livekit-plugins-openai, use_realtime": (livekit_call, realtime),
            "pipecat NvidiaSTTService": (
                pipecat_call, NvidiaSTTService(server=grpc, use_ssl=False, model_function_map=no_function),
            ),
            "pipecat OpenAIRealtimeSTTService": (
                pipecat_call,
                OpenAIRealtimeSTTService(
                    api_key="none", base_url=f"ws://{http}/v1/realtime", turn_detection=VAD, settings=settings
                ),
            ),
        }  # fmt: skip
        running = [asyncio.create_task(result(name, *made[name], parts, Told(words))) for name in made]
        for each in running:
            yield await each


async def result(name: str, call: Call, plugin: Any, parts: Parts, told: Told) -> dict[str, str]:
    """Makes the printed row of a call."""
    try:
        await asyncio.wait_for(call(plugin, parts, told), DEADLINE_S)
        found = {"words": " ".join(told.words)}
    except Exception as error:  # noqa: BLE001 - a row of the table
        found = {"error": f"{type(error).__name__}: {error}; told: {' '.join(told.words)}"}
    return {"name": f"{name} with a mute", **found}


async def main(grpc: str, http: str, folder: str, mute_s: str, words: str) -> None:
    with wave.open(str(Path(folder) / "recording.wav")) as file:
        recording = file.readframes(file.getnframes())
    async for found in calls(grpc, http, Parts(recording, float(mute_s)), int(words)):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
