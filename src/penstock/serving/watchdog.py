"""Monitors the models of a running server: their processes, and a probe through all of them.

Triton 2.51 does not end when a model's process is gone: it reports ready and fails every request, and it ends by
SIGABRT when a process that was only stopped continues. So `penstock serve` ends the server, and a supervisor starts
another.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from penstock.runtime import describe_end, memory_kills, read_system_file
from penstock.serving.health import Health, probe
from penstock.serving.model_repository import SPEAKERS

POLL_S = 0.1
SECOND_PROBE_S = 0.5
_FIND_S = 0.25
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
    with contextlib.suppress(psutil.NoSuchProcess, OSError):
        for process in psutil.Process(server_process_id).children():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if command and Path(command[0]).name == _STUB:  # its first argument: .../NAME/VERSION/model.py
                    found[process] = Path(command[1]).parent.parent.name
    return found


def _zombies(server_process_id: int) -> Iterator[psutil.Process]:
    """Model processes for which tritonserver has not waited yet. They have no command line, which has the model."""
    with contextlib.suppress(psutil.NoSuchProcess, OSError):
        for process in psutil.Process(server_process_id).children():
            with contextlib.suppress(psutil.Error):
                # The kernel keeps 15 characters of a name.
                if process.status() == psutil.STATUS_ZOMBIE and process.name() == _STUB[:15]:
                    yield process


class ModelEnds:
    """Exit statuses of a server's model processes: read from the zombies, before tritonserver waits for them.

    It does so after about a second while it starts, and else never.
    """

    def __init__(self, server_process_id: int):
        self._server = server_process_id
        self._kills = memory_kills()
        self._models: dict[psutil.Process, str] = {}
        self._ends: dict[str, str] = {}
        self._earlier = set(_zombies(server_process_id))
        self._due_s = 0.0

    def by_model(self) -> dict[str, str]:
        """The end of each model that has ended. While the server starts, call it several times per second.

        A model that ended before it was seen has no name any more: "" has its end.
        """
        if time.monotonic() >= self._due_s:
            unnamed = set(_zombies(self._server)) - self._earlier - self._models.keys()
            self._models |= dict.fromkeys(unnamed, "") | find_model_processes(self._server)
            self._due_s = time.monotonic() + _FIND_S
        ended = {name: process for process, name in self._models.items() if _status(process) in _ENDED}
        self._ends = {name: self.of(process) for name, process in ended.items()} | self._ends
        return self._ends

    def of(self, process: psutil.Process) -> str:
        """`describe_end`, without a status if the process is no zombie any more."""
        # Behind the name: the state, and at the end the status, which waitpid would return.
        fields = read_system_file(Path(f"/proc/{process.pid}/stat")).rpartition(")")[2].split()
        return describe_end(os.waitstatus_to_exitcode(int(fields[49])) if fields[:1] == ["Z"] else None, self._kills)


class ProcessWatch:
    """Finds model processes that have ended or are stopped."""

    def __init__(self, models: dict[psutil.Process, str], ends: ModelEnds, stopped_limit_s: float = STOPPED_LIMIT_S):
        self.models, self._ends, self._stopped_limit_s = models, ends, stopped_limit_s
        self._stopped_since: dict[psutil.Process, float] = {}

    def lost_process(self) -> str | None:
        """The first fault, or None."""
        for process, name in self.models.items():
            if problem := self._process_problem(process):
                return f"model {name} (process {process.pid}) {problem}"
        return None

    def _process_problem(self, process: psutil.Process) -> str | None:
        status = _status(process)
        if status in _ENDED:
            return f"has {self._ends.of(process)}"
        if status not in _STOPPED:
            self._stopped_since.pop(process, None)
            return None
        since = self._stopped_since.setdefault(process, time.monotonic())
        return "has been stopped" if time.monotonic() - since >= self._stopped_limit_s else None


class Watchdog:
    """Watches the models of a ready server in two threads. Use it as a context manager.

    A model is lost when its process has ended or has been stopped for `STOPPED_LIMIT_S`, when two consecutive probes
    return an error, or when two consecutive probes time out while no model uses a core. A server that is only slow is
    left alone, and so is `speakers`, which `penstock.serving.speaker_restarts` watches.
    """

    def __init__(self, server_process_id: int, http_address: str, make_probe: Callable[[str, float], Health] = probe):
        """http_address: HOST:PORT of the server, for `penstock.serving.health.probe`."""
        self._models = find_model_processes(server_process_id)
        self._processes = ProcessWatch(
            {each: name for each, name in self._models.items() if name != SPEAKERS}, ModelEnds(server_process_id)
        )
        self._address = http_address
        self._probe = make_probe
        self._bad_probes = 0
        self.loss: str | None = None
        """The fault, or None; it does not change back."""
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._watch_processes, "model processes"), (self._watch_probes, "model probes"))
        ]

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
            self.loss = self.loss or self._processes.lost_process()

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
                lost = self._processes.lost_process()
                self.loss = self.loss or lost or f"the models no longer serve: {health.reason}"

    def _cpu_use(self) -> tuple[float, bool]:
        """CPU time of all models in seconds, and whether one of them runs or would run on a free core."""
        cpu_s = 0.0
        for process in self._models:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                times = process.cpu_times()
                cpu_s += times.user + times.system
        return cpu_s, any(_status(process) in _AT_WORK for process in self._models)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD
    except OSError:  # no more files can be opened
        return "unknown"
