"""Runs Locust with our Locust file as a process of its own, against a server that is ready."""

import json
import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.json_report import make_folder, read_json
from loadtest.options import ROOT
from loadtest.termination import Terminated
from penstock.errors import PenstockError

LOCUST_FILE = Path(__file__).with_name("locustfile.py")
REPORT = "loadtest.json"
"""What Locust writes at its end, in the folder of --out."""
_LOOK_EVERY_S = 1.0
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
    why_ended: Callable[[], str | None] = lambda: None
    """Why the server has ended by itself; None as long as it has not."""


def processes_for(streams: int) -> int:
    """How many processes play so many streams. One needs no master beside it."""
    return math.ceil(streams / STREAMS_PER_PROCESS)


def run_locust(target: Target, processes: int, out: Path, arguments: list[str]) -> int:
    """Runs a test; `arguments` are the other options of the Locust file and of Locust. Returns Locust's exit status.

    KeyboardInterrupt where it was ended early: Locust has then written what it has seen. PenstockError where the server
    has ended by itself.
    """
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
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                return _wait(process, target)
            except KeyboardInterrupt as interrupt:
                if isinstance(interrupt, Terminated):  # Ctrl-C is sent to Locust too, by the terminal
                    process.terminate()
                process.wait()
                raise


def _wait(process: subprocess.Popen, target: Target) -> int:
    """Locust's exit status."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)
        if reason := target.why_ended():
            process.terminate()
            raise PenstockError(f"the server ended during the test: {reason}")


def headless_report(target: Target, processes: int, out: Path, arguments: list[str]) -> dict:
    """Runs a test without the web page and returns its report. PenstockError where Locust wrote none, KeyboardInterrupt
    as `run_locust`.
    """
    make_folder(out)
    (out / REPORT).unlink(missing_ok=True)
    status = run_locust(target, processes, out, ["--headless", "--only-summary", *arguments])
    path = out / REPORT
    if not path.exists():
        raise PenstockError(f"the load test made no report (Locust's exit status {status}); its messages are above")
    return read_json(path)
