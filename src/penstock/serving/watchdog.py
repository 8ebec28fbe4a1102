"""Monitors the models of a running server: their processes, and a probe through all of them.

Triton 2.51 does not end when a model's process is gone: it reports ready and fails every request, and it ends by
SIGABRT when a process that was only stopped continues. So `penstock serve` ends the server, and a supervisor starts
another.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.serving.health import Health, probe

POLL_S = 0.5
PROBE_INTERVAL_S = 3.0
PROBE_TIMEOUT_S = 2.0
STOPPED_LIMIT_S = 2.0
"""Triton drops a stub that does not answer within one second."""
_BUSY_SHARE = 0.05  # of one core: below it no model works on the late probe
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class ProcessState:
    """State of a process at one moment."""

    letter: str
    """The state in /proc: R, S or D; T or t if stopped; Z if ended."""
    parent: int
    cpu_s: float


def process_state(process_id: int) -> ProcessState | None:
    """None if there is no such process."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessState(fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def find_model_processes(server_process_id: int) -> dict[int, str]:
    """Process id -> model name of each Python model of a tritonserver."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        state = process_state(int(entry))
        if state is None or state.parent != server_process_id:
            continue
        try:
            command = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if Path(command[0]).name == _STUB:  # its first argument: .../NAME/VERSION/model.py
            found[int(entry)] = Path(command[1]).parent.parent.name
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
        self._stopped_since: dict[int, float] = {}
        self._bad_probes = 0
        self._loss: str | None = None
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._watch_processes, "model processes"), (self._watch_probes, "model probes"))
        ]

    @property
    def loss(self) -> str | None:
        """What is wrong, or None; it does not change back."""
        return self._loss

    def __enter__(self) -> "Watchdog":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(POLL_S)  # a thread that waits for a probe ends by itself

    def _watch_processes(self) -> None:
        while not self._is_over.wait(POLL_S):
            for process_id, name in self._models.items():
                if problem := self._process_problem(process_id):
                    self._loss = self._loss or f"model {name} (process {process_id}) {problem}"

    def _process_problem(self, process_id: int) -> str | None:
        state = process_state(process_id)
        if state is None or state.letter in "ZX":
            return "has ended"
        if state.letter not in "Tt":
            self._stopped_since.pop(process_id, None)
            return None
        since = self._stopped_since.setdefault(process_id, time.monotonic())
        return "has been stopped" if time.monotonic() - since >= STOPPED_LIMIT_S else None

    def _watch_probes(self) -> None:
        while not self._is_over.wait(PROBE_INTERVAL_S if not self._bad_probes else POLL_S):
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
                self._loss = self._loss or f"the models no longer serve: {health.reason}"

    def _cpu_use(self) -> tuple[float, bool]:
        """CPU time of all models in seconds, and whether one of them runs or would run on a free core."""
        states = [state for process_id in self._models if (state := process_state(process_id))]
        return sum(state.cpu_s for state in states), any(state.letter in "RD" for state in states)
