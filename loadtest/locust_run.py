"""Runs Locust with this package's Locust file in a separate process, against a ready server."""

import json
import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.options import BATCHED, ROOT
from loadtest.report import REPORT, make_folder
from penstock.errors import RunError

LOCUST_FILE = Path(__file__).with_name("locustfile.py")
LOCUST_REPORT = "locust.html"
"""Locust's own, beside REPORT: its tables of latencies, and them over time."""
STREAMS_PER_PROCESS, BATCHED_STREAMS_PER_PROCESS = 64, 512
"""One load generator process plays these with less than half a core."""
_POLL_S = 1.0


@dataclass(frozen=True)
class Target:
    """The server under test, or a gateway with its server."""

    url: str
    """Of the gateway, where there is one."""
    metrics_url: str = ""
    """Of the server."""
    process_id: int = 0
    """Of the server."""
    gateway_id: int = 0
    facts: dict[str, object] | None = None
    """What the report says about the server; its `chunk_ms` and `threads` are used in the figures."""
    end_reason: Callable[[], str | None] = lambda: None
    """Why the server has ended by itself; None while it runs."""


class Terminated(KeyboardInterrupt):
    """SIGTERM. Unlike Ctrl-C it may have reached this process alone, and not its children."""


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Raises Terminated on SIGTERM, so that children are ended and reports written. For the main thread."""

    def end(*_: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def processes_for(streams: int, target: str) -> int:
    """Returns the number of load generator processes for `streams` streams of a --target."""
    return math.ceil(streams / (BATCHED_STREAMS_PER_PROCESS if target == BATCHED else STREAMS_PER_PROCESS))


def run_locust(target: Target, processes: int, out: Path, arguments: list[str]) -> int:
    """Runs a test and returns Locust's exit status; `arguments`: further options of the Locust file and of Locust.

    KeyboardInterrupt where it was ended early, with its report written. RunError where the server has ended by
    itself.
    """
    facts = target.facts or {}
    setup = {"server": facts, "command": shlex.join(["loadtest", *sys.argv[1:]])}
    command = [
        *(sys.executable, "-m", "locust", "--locustfile", str(LOCUST_FILE)),
        *("--url", target.url, "--metrics-url", target.metrics_url, "--server-pid", str(target.process_id)),
        *("--gateway-pid", str(target.gateway_id)),
        *("--setup", json.dumps(setup), "--out", str(out.absolute())),
        *(("--chunk-ms", str(facts["chunk_ms"])) if "chunk_ms" in facts else ()),
        *(("--processes", str(processes)) if processes > 1 else ()),
        *arguments,
    ]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return _wait(process, target)
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Terminated):  # the terminal sends Ctrl-C to Locust too
                process.terminate()
            process.wait()
            raise


def headless_report(target: Target, processes: int, out: Path, arguments: list[str]) -> dict:
    """Runs a test without the web page and returns its report. RunError where Locust wrote none; KeyboardInterrupt
    as `run_locust`.
    """
    make_folder(out)
    path = out / REPORT
    path.unlink(missing_ok=True)
    headless = [
        "--headless",
        "--only-summary",
        "--loglevel",
        "WARNING",
        "--html",
        str((out / LOCUST_REPORT).absolute()),
    ]
    status = run_locust(target, processes, out, [*headless, *arguments])
    if not path.exists():
        raise RunError(f"the load test wrote no report (Locust's exit status {status}); its messages are above")
    return json.loads(path.read_text(encoding="utf-8"))


def _wait(process: subprocess.Popen, target: Target) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_S)
        if reason := target.end_reason():
            process.terminate()
            raise RunError(f"the server ended during the test: {reason}")
