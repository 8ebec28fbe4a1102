"""Calls of wyoming_openai, a server of the Wyoming protocol (Home Assistant) over OpenAI's API.

python wyoming_calls.py HTTP_URL FOLDER: FOLDER has `recording.wav`. Prints a JSON object for each call: its name, and
the words or the error. Runs in `.venv-compat/wyoming`.
"""

import asyncio
import subprocess
import sys
import time
import wave
from pathlib import Path

from call_rows import print_rows
from wyoming.asr import Transcribe, Transcript, TranscriptChunk
from wyoming.audio import wav_to_chunks
from wyoming.client import AsyncClient

START_S, DEADLINE_S = 60.0, 120.0
MODEL, STREAMING = "whisper-1", "gpt-4o-transcribe"


async def transcribe(uri: str, model: str, recording: Path) -> str:
    """Does what Home Assistant does with a command."""
    deltas = ""
    async with asyncio.timeout(DEADLINE_S), AsyncClient.from_uri(uri) as client:
        await client.write_event(Transcribe(name=model, language="en").event())
        with wave.open(str(recording)) as file:
            for chunk in wav_to_chunks(file, 1024, start_event=True, stop_event=True):
                await client.write_event(chunk.event())
        while event := await client.read_event():
            if TranscriptChunk.is_type(event.type):
                deltas += TranscriptChunk.from_event(event).text
            elif Transcript.is_type(event.type):
                text = Transcript.from_event(event).text
                assert deltas == (text if model == STREAMING else ""), (deltas, text)
                return text
    raise EOFError("the connection was closed")


def main(url: str, folder: str) -> None:
    listens, recording = Path(folder) / "wyoming.socket", Path(folder) / "recording.wav"
    command = [sys.executable, "-m", "wyoming_openai", "--uri", f"unix://{listens}"]
    for kind in ("stt", "tts"):
        command += [f"--{kind}-openai-url", f"{url}/v1", f"--{kind}-openai-key", "none"]
    command += ["--stt-models", MODEL, "--stt-streaming-models", STREAMING]
    with subprocess.Popen(command) as server:
        deadline_s = time.monotonic() + START_S
        while not listens.exists() and server.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.1)
        uri = f"unix://{listens}"
        print_rows({
            "transcribe": lambda: asyncio.run(transcribe(uri, MODEL, recording)),
            "transcribe as a stream": lambda: asyncio.run(transcribe(uri, STREAMING, recording)),
        })  # fmt: skip
        server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
