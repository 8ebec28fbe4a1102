"""Monitors the models of a running server: their processes, and a probe through all of them.

Triton 2.51 does not end when a model's process is gone: it reports ready and fails every request, and it ends by
SIGABRT when a process that was only stopped continues. So `penstock serve` ends the server, and a supervisor starts
another.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from penstock.serving.health import Health, probe

POLL_S = 0.1
SECOND_PROBE_S = 0.5
PROBE_INTERVAL_S = 3.0
PROBE_TIMEOUT_S = 2.0
STOPPED_LIMIT_S = 2.0
"""Triton drops a stub that does not answer within one second."""
_BUSY_SHARE = 0.05  # share of one core: below it no model works on the late probe
_STUB = "triton_python_backend_stub"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_AT_WORK = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


def find_model_processes(server_process_id: int) -> dict[psutil.Process, str]:
    """Process -> model name of each Python model of a tritonserver."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(server_process_id).children():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if command and Path(command[0]).name == _STUB:  # its first argument: .../NAME/VERSION/model.py
                    found[process] = Path(command[1]).parent.parent.name
    return found


class Watchdog:
    """Watches the models of a ready server in two threads. Use it as a context manager.

    A model is lost when its process has ended or has been stopped for `STOPPED_LIMIT_S`, when two consecutive probes
    return an error, or when two consecutive probes time out while no model uses a core. A server that is only slow is
    left alone.
    """

    def __init__(
        self,
        server_process_id: int,
        http_address: str,
        make_probe: Callable[[str, float], Health] = probe,
    ):
        """http_address: HOST:PORT of the server, for `penstock.serving.health.probe`."""
        self._models = find_model_processes(server_process_id)
        self._address = http_address
        self._probe = make_probe
        self._stopped_since: dict[psutil.Process, float] = {}
        self._bad_probes = 0
        self._loss: str | None = None
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._watch_processes, "model processes"), (self._watch_probes, "model probes"))
        ]

    @property
    def loss(self) -> str | None:
        """The fault, or None; it does not change back."""
        return self._loss

    def __enter__(self) -> "Watchdog":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(SECOND_PROBE_S)  # a thread that waits for a probe ends by itself

    def _watch_processes(self) -> None:
        while not self._is_over.wait(POLL_S):
            self._loss = self._loss or self._lost_process()

    def _lost_process(self) -> str | None:
        for process, name in self._models.items():
            if problem := self._process_problem(process):
                return f"model {name} (process {process.pid}) {problem}"
        return None

    def _process_problem(self, process: psutil.Process) -> str | None:
        status = _status(process)
        if status in _ENDED:
            return "has ended"
        if status not in _STOPPED:
            self._stopped_since.pop(process, None)
            return None
        since = self._stopped_since.setdefault(process, time.monotonic())
        return "has been stopped" if time.monotonic() - since >= STOPPED_LIMIT_S else None

    def _watch_probes(self) -> None:
        while not self._is_over.wait(PROBE_INTERVAL_S if not self._bad_probes else SECOND_PROBE_S):
            started, worked_s = time.monotonic(), self._cpu_use()[0]
            health = self._probe(self._address, PROBE_TIMEOUT_S)
            elapsed_s = time.monotonic() - started
            if self._is_over.is_set():
                return
            cpu_s, is_any_runnable = self._cpu_use()
            is_at_work = is_any_runnable or cpu_s - worked_s >= _BUSY_SHARE * elapsed_s
            is_slow = elapsed_s >= PROBE_TIMEOUT_S and is_at_work
            self._bad_probes = 0 if health.is_healthy or is_slow else self._bad_probes + 1
            if self._bad_probes >= 2:
                self._loss = self._loss or self._lost_process() or f"the models no longer serve: {health.reason}"

    def _cpu_use(self) -> tuple[float, bool]:
        """CPU time of all models in seconds, and whether one of them runs or would run on a free core."""
        cpu_s = 0.0
        for process in self._models:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                cpu_s += times.user + times.system
        return cpu_s, any(_status(process) in _AT_WORK for process in self._models)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD
