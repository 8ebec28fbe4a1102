"""NVIDIA's scripts as processes: their arguments, and the words in what they print or write."""

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

TIMEOUT_S = 300.0
MICROPHONE_S = 60.0
CLIENTS = 3
PINNED = {
    "transcribe_file.py": "649f420b4356c7cfca4699b97d955337892b5997379e6aa79aaf4978738920bc",
    "transcribe_file_offline.py": "6e976751bb4cf6ff52f3d4859abef9998d18fe669ce1ff6cef4741ff63ada3e2",
    "riva_streaming_asr_client.py": "c5d6049ae1b7b6f19afa9a889afbbedb48ba81b7a1cff2e62f80e2341d75b5a4",
    "realtime_asr_client.py": "e3c22fe2da976c3ae058e71d6ef46a1ee557cdd57e97a96dcb57f2b1929adbb9",
    "transcribe_mic.py": "b20f17202f17906900e75e99744769a63f338ef10a64ced6ded1389161c87602",
}
"""SHA-256 of the versions in the table of docs/interoperability.md. Others run, too, and are marked."""
FAKE_MICROPHONE = Path(__file__).with_name("fake_microphone")


@dataclass(frozen=True)
class Run:
    """One run of a script: its arguments, and the words in its output, folder being its working directory."""

    label: str
    script: str
    arguments: tuple[str, ...]
    words: Callable[[str, Path], str]


def _finals(output: str, folder: Path) -> str:
    """The words that print_streaming writes as `## words`."""
    return " ".join(" ".join(re.findall(r"^## (.*)$", output.replace("\r", "\n"), re.MULTILINE)).split())


def _offline(output: str, folder: Path) -> str:
    found = re.search(r"^Final transcript: (.*)$", output, re.MULTILINE)
    return found[1].strip() if found else output


def _files(output: str, folder: Path) -> str:
    """The words of riva_streaming_asr_client.py, which writes a file for each client; all must have the same words."""
    texts = [(folder / f"output_{number}.txt").read_text() for number in range(CLIENTS)]
    words = {" ".join(re.findall(r"Transcript 0: (.*?) *$", text, re.MULTILINE)) for text in texts}
    return " / ".join(sorted(words))


def _models(output: str, folder: Path) -> str:
    return ",".join(re.findall(r"'model': \['([^']*)'\]", output))


def _runs(folder: Path, grpc_address: str, http_address: str) -> tuple[Run, ...]:
    wav, flac = str(folder / "recording.wav"), str(folder / "recording.flac")
    riva = ("--server", grpc_address)
    stream, offline, written = "transcribe_file.py", "transcribe_file_offline.py", folder / "realtime.txt"
    return (
        Run("--list-models", stream, (*riva, "--list-models"), _models),
        Run("--simulate-realtime wav", stream, (*riva, "--input-file", wav, "--simulate-realtime"), _finals),
        Run("flac", stream, (*riva, "--input-file", flac, "--show-intermediate"), _finals),
        Run("wav", offline, (*riva, "--input-file", wav), _offline),
        Run(
            "--no-verbatim-transcripts --profanity-filter of a date", stream,
            (*riva, "--input-file", str(folder / "date.wav"), "--no-verbatim-transcripts", "--profanity-filter"),
            _finals,
        ),
        Run("flac", offline, (*riva, "--input-file", flac), _offline),
        Run(
            f"--num-clients {CLIENTS} wav", "riva_streaming_asr_client.py",
            (*riva, "--input-file", wav, "--num-clients", str(CLIENTS)), _files,
        ),
        Run(
            "wav", "realtime_asr_client.py",
            ("--server", http_address, "--input-file", wav, "--output-text", str(written)),
            lambda output, folder: written.read_text().strip() if written.exists() else output,
        ),
    )  # fmt: skip


def run_scripts(
    python: str, scripts: Path, folder: Path, grpc_address: str, http_address: str
) -> Iterator[tuple[str, str]]:
    """Name, and the words or the error, of each run. The name has the start of the SHA-256 of a version not pinned."""
    for run in _runs(folder, grpc_address, http_address):
        script = scripts / run.script
        command = [python, str(script), *run.arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
        words = run.words(done.stdout, folder) if done.returncode == 0 else done.stderr
        yield f"{run.script}{_version(script)} {run.label}", words
    script = scripts / "transcribe_mic.py"
    yield f"{script.name}{_version(script)} wav", _microphone(python, script, folder, grpc_address)


def _version(script: Path) -> str:
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    return "" if digest == PINNED.get(script.name) else f" ({digest[:8]}, not pinned)"


def _microphone(python: str, script: Path, folder: Path, grpc_address: str) -> str:
    """The words of the first final result. The script runs until Ctrl-C."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(FAKE_MICROPHONE),
        "PYTHONUNBUFFERED": "1",
        "PENSTOCK_MICROPHONE": str(folder / "recording.wav"),
    }
    command = [python, str(script), "--server", grpc_address]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        ending = Timer(MICROPHONE_S, process.terminate)
        ending.start()
        lines = []
        for line in process.stdout:  # partial results end with a carriage return, which is a line, too
            lines.append(line)
            if "##" in line:
                process.send_signal(signal.SIGINT)
                break
        ending.cancel()
        return _finals("".join(lines), folder) or f"no final result: {lines[-1:]} {process.stderr.read()}"
