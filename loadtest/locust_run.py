"""A server for one test, and Locust with this package's Locust file in a process of its own, which tests it."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.options import DIRECT, GATEWAYS, ROOT
from loadtest.report import REPORT, make_folder
from penstock.errors import RunError
from penstock.model.bundle import Checkpoint
from penstock.model.config import parse_context
from penstock.serving.information import server_information, speaker_information
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import ServeOptions, Settings
from penstock.serving.triton_install import find_triton

LOCUST_FILE = Path(__file__).with_name("locustfile.py")
LOCUST_REPORT = "locust.html"
"""Locust's own, beside REPORT: its tables of latencies, and them over time."""
STREAMS_PER_PROCESS, CALLS_PER_PROCESS = 256, 64
"""One load generator process plays these with less than half a core."""
_POLL_S = 1.0
_DRAIN_S = 1


@dataclass(frozen=True)
class Target:
    """The server under test, or a gateway with its server."""

    url: str
    """The address of the gateway, where there is one."""
    metrics_url: str = ""
    """URL of the server's metrics; the next is the server's, too."""
    process_id: int = 0
    gateway_id: int = 0
    facts: dict[str, object] | None = None
    """Facts about the server for the report; its `chunk_ms` and `threads` are used in the figures."""
    end_reason: Callable[[], str | None] = lambda: None
    """Why the server has ended by itself; None while it runs."""
    urls: Mapping[str, str] = field(default_factory=dict)
    """host:port of a server that was started for this test, by "grpc", "http" and "metrics"."""


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


def processes_for(streams: int, target: str = DIRECT) -> int:
    """Returns the number of load generator processes for `streams` streams of a --target."""
    return math.ceil(streams / (CALLS_PER_PROCESS if target in GATEWAYS else STREAMS_PER_PROCESS))


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
    headless = ["--headless", "--only-summary", "--loglevel", "WARNING", "--html", str(out.absolute() / LOCUST_REPORT)]
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


@dataclass(frozen=True)
class ServerPlan:
    """Settings of a test's server."""

    model: Path
    """A bundle."""
    context: str | None
    """L,R; None for `ModelConfig.default_context`, and of an offline model, whose streams choose their windows."""
    max_streams: int
    threads: int
    """Per model."""


@contextmanager
def fresh_server(plan: ServerPlan, protocol: str = "grpc") -> Iterator[Target]:
    """Starts a server on free ports of this machine, to be tested over "grpc" or "http", and stops it at the end.

    Raises PenstockError.
    Settings beyond the plan's come from the environment (PENSTOCK_..., docs/deployment.md).
    """
    environment = {
        "PENSTOCK_MODEL": str(plan.model.absolute()),
        "PENSTOCK_MAX_STREAMS": str(plan.max_streams),
        "PENSTOCK_THREADS": str(plan.threads),
    }
    facts: dict[str, object] = {"model": plan.model.name}
    config = Checkpoint(plan.model).config
    if plan.context or not config.encoder.is_offline:
        context = config.encoder.select_context(parse_context(plan.context) if plan.context else None)
        environment["PENSTOCK_CONTEXT"] = f"{context.left},{context.right}"
        facts |= {"context": f"[{context.left},{context.right}]", "chunk_ms": config.chunk_ms(context)}
    facts |= {"max_streams": plan.max_streams, "threads": plan.threads, **settings_beyond(environment)}
    published = information(os.environ | environment)
    options = ServerOptions(find_model_repository(), drain_s=_DRAIN_S, environment=environment, information=published)
    with TritonServer(find_triton(), options) as server:
        urls = {name: f"{LOOPBACK}:{getattr(server.ports, name)}" for name in ("grpc", "http", "metrics")}

        def end_reason() -> str | None:
            return server.end_reason() if server.has_ended() else None

        yield Target(urls[protocol], f"http://{urls['metrics']}/metrics", server.process_id, 0, facts, end_reason, urls)


def information(environment: Mapping[str, str]) -> dict[str, str]:
    """Information that `penstock serve` with these settings gives to clients; the device is no part of it."""
    found = Settings.from_environment({**environment, "PENSTOCK_DEVICE": "cpu"})
    options, config = found.options, found.speaker_config
    return {
        **server_information(
            found.checkpoint, found.context, options.decoding, options.max_streams, options.idle_seconds
        ),
        **({} if config is None else speaker_information(config, options.all_speaker_streams)),
    }


def settings_beyond(plan: dict[str, str]) -> dict[str, str]:
    """Returns server settings that this process's environment sets beside the plan, by the settings' names."""
    beyond = [option for option in ServeOptions.options() if option.variable not in plan]
    return {s.name: os.environ[s.variable] for s in beyond if os.environ.get(s.variable)}
