"""Calls of the agents of gateway/examples, whole but for the call itself and the models that answer and speak.

python agent_calls.py GRPC_ADDRESS HTTP_ADDRESS FOLDER MUTE_S WORDS: FOLDER has `recording.wav`, which has WORDS words;
each call sends it in real time, nothing for MUTE_S, and it again. Prints a JSON object for each call: its name, and the
words of its final results, or the error. The agent must also ask its language model. Runs in `.venv-compat`.
"""

import asyncio
import json
import os
import sys
import wave
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.utils import http_context
from livekit.agents.voice.io import AudioInput
from livekit.plugins import nvidia
from pipecat.frames.frames import EndFrame, Frame, InputAudioRawFrame, TranscriptionFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport
from pipecat.workers.runner import WorkerRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import livekit_agent
import pipecat_agent

RATE_HZ = 16_000
PIECE_S = 0.1
PIECE_BYTES = round(PIECE_S * RATE_HZ) * 2
SILENCE = bytes(2 * 2 * RATE_HZ)
"""After each recording: a pause that ends its turn."""
DEADLINE_S = 120.0
VAD = {"type": "server_vad", "silence_duration_ms": 800}
"""Not Pipecat's: its commits cut words where a busy machine makes it late."""


class Told:
    """The words of final results, which come while audio is sent."""

    def __init__(self, words: int):
        self.words: list[str] = []
        self._of_recording = words
        self._more = asyncio.Event()

    def add(self, text: str) -> None:
        self.words += text.split()
        self._more.set()

    async def wait(self, recordings: int) -> None:
        """Returns when this number of recordings is told."""
        while len(self.words) < recordings * self._of_recording:
            self._more.clear()
            await self._more.wait()


class Models:
    """A server of OpenAI's API whose language model says yes and whose voice is silence; a path for each call."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        """Calls whose language model was asked."""
        self._app = web.Application()
        self._app.router.add_post("/{call}/chat/completions", self._chat)
        self._app.router.add_post("/{call}/audio/speech", self._speak)

    async def start(self) -> str:
        """Returns its address."""
        runner = web.AppRunner(self._app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _chat(self, request: web.Request) -> web.Response:
        self.asked.add(request.match_info["call"])
        choice = {"index": 0, "delta": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        chunk = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        return web.Response(text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async def _speak(self, request: web.Request) -> web.Response:
        return web.Response(body=bytes(24_000), content_type="audio/pcm")


class Parts:
    """The audio of a call: `parts(told)` yields pieces in real time, and nothing during the mute."""

    def __init__(self, recording: bytes, mute_s: float):
        self._audio, self._mute_s = recording + SILENCE, mute_s

    async def __call__(self, told: Told) -> AsyncIterator[bytes]:
        for recordings in (1, 2):
            for piece in self._pieces():
                yield piece
                await asyncio.sleep(PIECE_S)
            await told.wait(recordings)
            if recordings == 1:
                await asyncio.sleep(self._mute_s)

    def _pieces(self) -> Iterator[bytes]:
        return (self._audio[start : start + PIECE_BYTES] for start in range(0, len(self._audio), PIECE_BYTES))


class Microphone(AudioInput):
    """The audio of a LiveKit session, which ends with the call."""

    def __init__(self, parts: AsyncIterator[bytes]):
        super().__init__(label="recording")
        self._parts, self.ended = parts, asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        async for piece in self._parts:
            return rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2)
        self.ended.set()
        raise StopAsyncIteration


async def livekit_call(session: AgentSession, parts: Parts, told: Told) -> None:
    """A session without a room."""
    microphone = Microphone(parts(told))
    session.on("user_input_transcribed", lambda event: event.is_final and told.add(event.transcript))
    async with http_context.open(), session:
        session.input.audio = microphone
        await session.start(Agent(instructions=livekit_agent.INSTRUCTIONS))
        await microphone.ended.wait()


class Wire(BaseTransport):
    """A Pipecat transport without a network: frames are queued at the start of the pipeline, and dropped at its end."""

    def input(self) -> FrameProcessor:
        return Passing()

    def output(self) -> FrameProcessor:
        return Passing()


class Passing(FrameProcessor):
    """A stage that changes nothing."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)


class Finals(BaseObserver):
    """Reads the final results that the recognizer of a pipeline sends."""

    def __init__(self, told: Told):
        super().__init__()
        self._told = told

    async def on_push_frame(self, data: FramePushed) -> None:
        if isinstance(data.frame, TranscriptionFrame) and isinstance(data.source, STTService):
            self._told.add(data.frame.text)


async def pipecat_call(worker: PipelineWorker, parts: Parts, told: Told) -> None:
    """A pipeline without a network."""
    worker.add_observer(Finals(told))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    async for piece in parts(told):
        await worker.queue_frame(InputAudioRawFrame(piece, pipecat_agent.RATE_HZ, 1))
    await worker.queue_frame(EndFrame())
    await running


async def calls(grpc: str, http: str, parts: Parts, words: int) -> AsyncIterator[dict[str, str]]:
    """The result of each call. They run at the same time."""
    os.environ |= {"OPENAI_API_KEY": "none", "PENSTOCK_URL": f"http://{http}", "PENSTOCK_GRPC": grpc}
    recognizers: dict[str, Callable[[], Any]] = {
        "livekit_agent.py": livekit_agent.recognizer,
        "livekit_agent.py, nvidia.STT": lambda: nvidia.STT(server=grpc, use_ssl=False, model="", function_id=""),
        "pipecat_agent.py": pipecat_agent.recognizer,
        "pipecat_agent.py, OpenAIRealtimeSTTService": lambda: OpenAIRealtimeSTTService(
            api_key="none", base_url=f"ws://{http}/v1/realtime", turn_detection=VAD
        ),
    }
    models = Models()
    address = await models.start()
    running = {}
    for index, (name, make) in enumerate(recognizers.items()):
        os.environ["OPENAI_BASE_URL"] = f"{address}/{index}"
        told = Told(words)
        if name.startswith("livekit"):
            call = livekit_call(livekit_agent.make_session(make()), parts, told)
        else:
            call = pipecat_call(pipecat_agent.make_agent(Wire(), make()), parts, told)
        running[str(index)] = asyncio.create_task(result(name, call, told))
    for index, each in running.items():
        found = await each
        yield found if index in models.asked else found | {"words": "the language model was not asked"}


async def result(name: str, call: Coroutine[Any, Any, None], told: Told) -> dict[str, str]:
    """Makes the printed row of a call."""
    try:
        await asyncio.wait_for(call, DEADLINE_S)
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
