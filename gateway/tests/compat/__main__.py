"""Runs the clients of other projects, unchanged, against a real server and gateway: `make client-compat`.

The packages of NVIDIA and OpenAI, the plugins of LiveKit and Pipecat, and Node are those of locks/compat.txt, in an
environment of their own; JavaScript's packages are beside the examples. wyoming_openai, of locks/wyoming.txt, has
another environment (`--wyoming-python`). NVIDIA's scripts come from `--riva-scripts`, the folder scripts/asr of a
checkout of github.com/nvidia-riva/python-clients. Rows of what is not named are left out. Prints a table and ends with
status 1 if the words of a row differ from those of `penstock_client`.
"""

import argparse
import asyncio
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import soundfile
import soxr

from gateway.tests.compat.javascript import CERTIFICATES, run_examples
from gateway.tests.compat.riva_scripts import run_scripts
from penstock.pipeline.results.figures import figures_of
from penstock_client import Client
from penstock_gateway.audio.container import DecodedRecording, in_memory
from trials.server.gateway import RunningGateway
from trials.server.running import running_gateway, running_server

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "an4-rnnt-hybrid"
RECORDING = ROOT / "tests" / "data" / "an4" / "flac" / "an406-fcaw-b.flac"
OTHER_SPEAKER = RECORDING.with_name("cen8-mjwl-b.flac")
MASKED = "june"
RATE_HZ = 16_000
MAX_STREAMS = 32
IDLE_S, MUTE_S = 5, 8
"""Silence after which a stream gives its slot back, and that of a call with a mute."""


@dataclass(frozen=True)
class Row:
    """One call, what it must return, and what it returned."""

    client: str
    call: str
    expected: str
    found: str

    @property
    def is_right(self) -> bool:
        """True if the words are those of the direct client."""
        return self.found == self.expected


def make_recordings(folder: Path) -> None:
    """Writes the recording in every format that the calls send."""
    samples, rate_hz = soundfile.read(RECORDING, dtype="float32")
    assert rate_hz == RATE_HZ
    for ending, form, subtype in (("wav", "WAV", "PCM_16"), ("flac", "FLAC", "PCM_16"), ("ogg", "OGG", "OPUS")):
        soundfile.write(folder / f"recording.{ending}", samples, RATE_HZ, format=form, subtype=subtype)
    soundfile.write(folder / "recording.mp3", samples, RATE_HZ, format="MP3")
    _encode(folder / "recording.webm", "webm", "libopus", samples)
    _encode(folder / "recording.m4a", "ipod", "aac", samples)
    other = soundfile.read(OTHER_SPEAKER, dtype="float32")[0]
    both = np.zeros((max(len(samples), len(other)), 2), np.float32)
    both[: len(samples), 0], both[: len(other), 1] = samples, other
    soundfile.write(folder / "stereo.wav", both, RATE_HZ, subtype="PCM_16")
    soundfile.write(folder / "date.wav", other, RATE_HZ, subtype="PCM_16")
    faster = soxr.resample(samples, RATE_HZ, 24_000)
    (folder / "recording_24khz.pcm").write_bytes(_pcm(faster))


def _encode(path: Path, form: str, codec: str, samples: np.ndarray) -> None:
    """With FFmpeg, at 48 kHz."""
    with av.open(str(path), "w", format=form) as out:
        stream = out.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(soxr.resample(samples, RATE_HZ, 48_000)[None], format="fltp", layout="mono")
        frame.sample_rate = 48_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            out.mux(packet)


def _pcm(samples: np.ndarray) -> bytes:
    return np.clip(samples * 32768, -32768, 32767).astype("<i2").tobytes()


async def _decoded(path: Path) -> np.ndarray:
    """The samples of a file at the model's rate, as the gateway decodes them."""
    data = path.read_bytes()
    if path.suffix == ".pcm":
        return soxr.resample(np.frombuffer(data, "<i2").astype(np.float32) / 32768, 24_000, RATE_HZ, "HQ")
    return np.concatenate([block async for block in DecodedRecording(in_memory(data), "a", RATE_HZ, 3600).blocks()])


def direct_words(folder: Path, url: str) -> dict[str, str]:
    """Words that `penstock_client` recognizes in each file, by its ending."""
    words = {}
    with Client(url) as client:
        for path in sorted(folder.glob("recording*")):
            file = io.BytesIO()
            soundfile.write(file, asyncio.run(_decoded(path)), RATE_HZ, format="WAV", subtype="FLOAT")
            copy = folder / "decoded.wav"
            copy.write_bytes(file.getvalue())
            words[path.suffix[1:]] = client.transcribe(copy).text
            copy.unlink()
        channels = [client.transcribe(folder / "stereo.wav", channel=channel).text for channel in ("left", "right")]
        words["speakers"] = " | ".join(channels)
        words["date"] = figures_of(channels[1], "en").replace(MASKED, "j***")
    return words


def run_calls(python: str, program: str, *arguments: str) -> Iterator[tuple[str, str]]:
    """Name, and the words or the error, of each call of a program beside this file."""
    command = [python, str(Path(__file__).with_name(program)), *arguments]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"name"'):
                call = json.loads(line)
                yield call["name"], call.get("words", call.get("error"))
        if process.wait():
            log.seek(0)
            sys.exit(f"{program} ended with status {process.returncode}:\n{log.read()}")


def _expected(call: str, words: dict[str, str], model: str) -> str:
    """The words of the file that a call sends."""
    if "models" in call:
        return model
    once = words["pcm"] if call.startswith("realtime") else words.get(call.rpartition(" ")[2], words["wav"])
    if "nvidia.STT" in call:
        once = figures_of(once, "en")
    return f"{once} {once}" if call.endswith("with a mute") else once


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, RunningGateway, RunningGateway]]:
    """The address of a server, and two gateways in front of it, the second with TLS."""
    servers = running_server(MODEL, MAX_STREAMS, 30.0)
    server = next(servers)
    masks = folder / "masks.txt"
    masks.write_text(MASKED)
    flags = ("--endpoint-silence-ms", "800", "--idle-seconds", str(IDLE_S), "--mask-words", str(masks))
    tls = ("--tls-cert", str(CERTIFICATES / "cert.pem"), "--tls-key", str(CERTIFICATES / "key.pem"))
    try:
        with running_gateway(server, *flags) as gateway, running_gateway(server, *flags, *tls) as secure:
            yield server.url("grpc"), gateway, secure
    finally:
        servers.close()


def rows(python: str, scripts: Path | None, wyoming_python: str | None) -> Iterator[Row]:
    """All calls."""
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (url, gateway, secure):
        folder = Path(name)
        make_recordings(folder)
        words = direct_words(folder, url)
        mute, count = str(MUTE_S), str(len(words["wav"].split()))
        calls = {
            "openai": run_calls(python, "openai_calls.py", f"http://{gateway.http}", name, mute),
            "riva.client": run_calls(python, "riva_calls.py", gateway.grpc, gateway.http, name, mute),
            "voice agents": run_calls(python, "agent_calls.py", gateway.grpc, gateway.http, name, mute, count),
            "JavaScript": run_examples(
                Path(python).with_name("node"), folder / "recording.wav", gateway.http, secure.http
            ),
        }
        if wyoming_python is not None:
            calls["wyoming_openai"] = run_calls(wyoming_python, "wyoming_calls.py", f"http://{gateway.http}", name)
        if scripts is not None:
            calls["Riva's scripts"] = run_scripts(python, scripts, folder, gateway.grpc, gateway.http)
        for client, found in calls.items():
            for call, result in found:
                yield Row(client, call, _expected(call, words, MODEL.name), result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the environment of locks/compat.txt")
    parser.add_argument("--riva-scripts", type=Path, help="folder scripts/asr of a checkout of python-clients")
    parser.add_argument("--wyoming-python", type=Path, help="interpreter of the environment of locks/wyoming.txt")
    args = parser.parse_args()
    scripts = args.riva_scripts and args.riva_scripts.absolute()
    counts = {True: 0, False: 0}
    wyoming = args.wyoming_python and str(args.wyoming_python.absolute())
    for row in rows(str(args.python.absolute()), scripts, wyoming):
        counts[row.is_right] += 1
        print(f"{'pass' if row.is_right else 'FAIL'}  {row.client:15} {row.call:54} {row.found}", flush=True)
        if not row.is_right:
            print(f"      expected {row.expected}")
    print(f"{counts[True]} passed, {counts[False]} failed")
    if args.riva_scripts is None:
        print("left out: NVIDIA's scripts, which need RIVA_SCRIPTS (docs/interoperability.md)")
    if args.wyoming_python is None:
        print("left out: wyoming_openai, which needs WYOMING_PYTHON, a Python 3.12")
    sys.exit(bool(counts[False]))


if __name__ == "__main__":
    main()
