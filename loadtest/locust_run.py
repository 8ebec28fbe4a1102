"""Runs Locust with our Locust file as a process of its own, against a server that is ready."""

import json
import math
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.json_report import read_json
from loadtest.options import ROOT
from penstock.errors import PenstockError

LOCUST_FILE = Path(__file__).with_name("locustfile.py")
STREAMS_PER_PROCESS = 64
"""What one process of the load generator plays with less than half a core, in pieces of 100 ms."""


@dataclass(frozen=True)
class Target:
    """The server under test."""

    url: str
    metrics_url: str = ""
    process_id: int = 0
    facts: dict[str, object] | None = None
    """For the report; `chunk_ms` and `threads` of them count in its figures."""


def processes_for(streams: int) -> int:
    """How many processes play so many streams. One needs no master beside it."""
    return math.ceil(streams / STREAMS_PER_PROCESS)


def run_locust(target: Target, processes: int, out: Path, arguments: list[str]) -> int:
    """Runs a test; `arguments` are the other options of the Locust file and of Locust. Returns Locust's exit status."""
    facts = target.facts or {}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as setup:
        json.dump({"server": facts, "command": shlex.join(["loadtest", *sys.argv[1:]])}, setup)
        setup.flush()
        command = [
            *(sys.executable, "-m", "locust", "--locustfile", str(LOCUST_FILE)),
            *("--url", target.url, "--metrics-url", target.metrics_url, "--server-pid", str(target.process_id)),
            *("--setup", setup.name, "--out", str(out.absolute())),
            *(("--chunk-ms", str(facts["chunk_ms"])) if "chunk_ms" in facts else ()),
            *(("--processes", str(processes)) if processes > 1 else ()),
            *arguments,
        ]
        with subprocess.Popen(command, cwd=ROOT) as process, _ended_with_us(process):
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal has sent it to Locust too, which writes its report
                return process.wait()


@contextmanager
def _ended_with_us(process: subprocess.Popen) -> Iterator[None]:
    """SIGTERM ends Locust, which writes its report: a test that is ended early tells what it has seen."""
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def headless_report(target: Target, processes: int, out: Path, arguments: list[str]) -> dict:
    """Runs a test without the web page and returns its report. PenstockError where Locust wrote none."""
    path = out / "loadtest.json"
    path.unlink(missing_ok=True)
    status = run_locust(target, processes, out, ["--headless", "--only-summary", *arguments])
    if not path.exists():
        raise PenstockError(f"the load test made no report (Locust's exit status {status}); its messages are above")
    return read_json(path)
