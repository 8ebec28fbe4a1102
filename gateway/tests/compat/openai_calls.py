"""Calls of OpenAI's own package, as a user writes them. Runs in the environment `.venv-compat`.

python openai_calls.py HTTP_URL FOLDER MUTE_S: FOLDER has `recording.wav`, .flac, .ogg, .mp3, .webm and .m4a,
`recording_24khz.pcm`, `date.wav` and, with a speaker in each channel, `stereo.wav`. A call with a mute sends nothing
for MUTE_S between two recordings. Prints a JSON object for each call: its name, and the words or the error.
"""

import base64
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from call_rows import print_rows
from openai import OpenAI

PIECE_BYTES = 4800  # 100 ms at 24 kHz
MODEL = "gpt-4o-transcribe"
DEADLINE_S = 120.0


def calls(client: OpenAI, folder: Path, mute_s: float) -> dict[str, Callable[[], str]]:
    """Each call by name; it returns its words."""

    def create(ending: str, stem: str = "recording", **options):
        with (folder / f"{stem}.{ending}").open("rb") as file:
            return client.audio.transcriptions.create(model=MODEL, file=file, **options)

    def verbose() -> str:
        found = create("wav", response_format="verbose_json", timestamp_granularities=["word", "segment"])
        assert found.words and found.segments and found.duration > 1
        assert [word.word for word in found.words] == found.text.split()
        assert all(0 <= word.start <= word.end <= found.duration for word in found.words)
        assert " ".join(segment.text.strip() for segment in found.segments) == found.text
        return found.text

    def streamed() -> str:
        events = list(create("wav", stream=True))
        deltas = "".join(event.delta for event in events if event.type == "transcript.text.delta")
        assert events[-1].type == "transcript.text.done" and deltas == events[-1].text, (deltas, events[-1])
        return deltas

    def cues(form: str) -> str:
        lines = str(create("wav", response_format=form)).splitlines()
        assert form == "srt" or lines[0] == "WEBVTT"
        times = [line for line in lines if re.fullmatch(r"[\d:.,]+ --> [\d:.,]+", line)]
        assert times
        return " ".join(line for line in lines if line not in ("", "WEBVTT", *times) and not line.isdecimal())

    def stereo(form: str) -> str:
        found = create("wav", "stereo", response_format=form, extra_body={"channels": "each"})
        words = {"left": "", "right": ""}
        if form == "srt":
            for cue in str(found).strip().split("\n\n"):
                channel, _, text = " ".join(cue.splitlines()[2:]).partition(": ")
                words[channel] += f" {text}"
        else:
            for part in found.segments:
                words[part.channel] += f" {part.text}"
        return " | ".join(" ".join(text.split()) for text in words.values())

    named = {
        "models.list": lambda: ",".join(model.id for model in client.models.list()),
        "transcriptions json": lambda: create("wav").text,
        "transcriptions text": lambda: str(create("wav", response_format="text")).removesuffix("\n"),
        "transcriptions srt": lambda: cues("srt"),
        "transcriptions vtt": lambda: cues("vtt"),
        "transcriptions verbose_json": verbose,
        "transcriptions stream=True": streamed,
    }
    for ending in ("flac", "ogg", "mp3", "webm", "m4a"):
        named[f"transcriptions of {ending}"] = lambda ending=ending: create(ending).text
    options = {"numbers": "figures", "mask_words": True}
    named["transcriptions of a date"] = lambda: create("wav", "date", extra_body=options).text
    for form in ("verbose_json", "srt"):
        named[f"transcriptions {form} of two speakers"] = lambda form=form: stereo(form)
    audio = (folder / "recording_24khz.pcm").read_bytes()
    vad = {"type": "server_vad", "silence_duration_ms": 800}
    named["realtime server_vad"] = lambda: realtime(client, audio, vad)
    named["realtime commit"] = lambda: realtime(client, audio, None)
    named["realtime server_vad with a mute"] = lambda: realtime(client, audio, vad, mute_s)
    return named


def realtime(client: OpenAI, audio: bytes, turn_detection: dict | None, mute_s: float | None = None) -> str:
    """Sends audio over the WebSocket, and with a mute again; returns the words of its segments."""
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        form = {"type": "audio/pcm", "rate": 24_000}
        settings = {"format": form, "transcription": {"model": MODEL}, "turn_detection": turn_detection}
        connection.session.update(session={"type": "transcription", "audio": {"input": settings}})
        found = segment(connection, audio, turn_detection is None)
        if mute_s is not None:
            time.sleep(mute_s)
            found += " " + segment(connection, audio, turn_detection is None)
    return found


def segment(connection: Any, audio: bytes, commits: bool) -> str:
    """Sends audio, and what ends its segment: the words of that."""
    audio += b"" if commits else bytes(2 * 24_000 * 2)
    for start in range(0, len(audio), PIECE_BYTES):
        connection.input_audio_buffer.append(audio=base64.b64encode(audio[start : start + PIECE_BYTES]).decode())
    if commits:
        connection.input_audio_buffer.commit()
    deltas = ""
    for event in connection:
        assert event.type != "error", event
        if event.type == "conversation.item.input_audio_transcription.delta":
            deltas += event.delta
        elif event.type == "conversation.item.input_audio_transcription.completed":
            assert deltas == event.transcript, (deltas, event.transcript)
            return event.transcript
    raise EOFError("the connection was closed")


def main(url: str, folder: str, mute_s: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=DEADLINE_S, max_retries=0)
    print_rows(calls(client, Path(folder), float(mute_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
