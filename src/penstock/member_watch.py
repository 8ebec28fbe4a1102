"""Whether the members of a running server still serve: their processes, and a probe through all of them.

Triton goes on without a member that is gone: it calls itself ready, fails every request, and ends by SIGABRT if the
process had only been stopped and goes on (2.51). So whoever runs the server ends it, and a supervisor starts another.
Knows nothing of speech.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.health import Health, probe

POLL_S = 0.5
PROBE_INTERVAL_S = 3.0
PROBE_TIMEOUT_S = 2.0
STOPPED_LIMIT_S = 4.0
"""Triton gives a stopped member up after three seconds (`patience.py`), or after one."""
_BUSY_SHARE = 0.05  # of one core: below it nobody is at work on what is late
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class ProcessState:
    """One look at a process."""

    letter: str
    """As in /proc: R, S, D; T or t where it is stopped; Z where it has ended."""
    parent: int
    cpu_s: float


def look_at(process_id: int) -> ProcessState | None:
    """None where there is no such process."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessState(fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def find_members(server_process_id: int) -> dict[int, str]:
    """Process id -> model name of each Python member of a tritonserver."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        state = look_at(int(entry))
        if state is None or state.parent != server_process_id:
            continue
        try:
            command = Path(f"/proc/{entry}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if Path(command[0]).name == _STUB:  # its first argument: .../NAME/VERSION/model.py
            found[int(entry)] = Path(command[1]).parent.parent.name
    return found


class MemberWatch:
    """Looks at a server's members in a thread of its own. Use as a context manager, from when the server is ready.

    A member is lost when its process has ended; when it has been stopped for `STOPPED_LIMIT_S`; when two probes in a
    row are answered by an error; or when two in a row are not answered although no member is at work. A server that is
    only slow is left alone.
    """

    def __init__(
        self,
        server_process_id: int,
        http_address: str,
        make_probe: Callable[[str, float], Health] = probe,
    ):
        """http_address: of the server, as `penstock.health.probe` takes it."""
        self._members = find_members(server_process_id)
        self._address = http_address
        self._probe = make_probe
        self._stopped_since: dict[int, float] = {}
        self._bad_probes = 0
        self._loss: str | None = None
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._watch_processes, "member processes"), (self._watch_probes, "member probes"))
        ]

    @property
    def loss(self) -> str | None:
        """What is wrong, as soon as it is known to be; it does not get right again."""
        return self._loss

    def __enter__(self) -> "MemberWatch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(POLL_S)  # one that waits for an answer ends by itself

    def _watch_processes(self) -> None:
        while not self._is_over.wait(POLL_S):
            for process_id, name in self._members.items():
                if problem := self._process_problem(process_id):
                    self._loss = self._loss or f"member {name} (process {process_id}) {problem}"

    def _process_problem(self, process_id: int) -> str | None:
        state = look_at(process_id)
        if state is None or state.letter in "ZX":
            return "has ended"
        if state.letter not in "Tt":
            self._stopped_since.pop(process_id, None)
            return None
        since = self._stopped_since.setdefault(process_id, time.monotonic())
        return "has been stopped" if time.monotonic() - since >= STOPPED_LIMIT_S else None

    def _watch_probes(self) -> None:
        while not self._is_over.wait(PROBE_INTERVAL_S if not self._bad_probes else POLL_S):
            started, worked_s = time.monotonic(), self._look_at_all()[0]
            health = self._probe(self._address, PROBE_TIMEOUT_S)
            elapsed_s = time.monotonic() - started
            if self._is_over.is_set():
                return
            cpu_s, is_any_runnable = self._look_at_all()
            is_at_work = is_any_runnable or cpu_s - worked_s >= _BUSY_SHARE * elapsed_s
            is_slow = elapsed_s >= PROBE_TIMEOUT_S and is_at_work
            self._bad_probes = 0 if health.is_healthy or is_slow else self._bad_probes + 1
            if self._bad_probes >= 2:
                self._loss = self._loss or f"the members do not serve any more: {health.reason}"

    def _look_at_all(self) -> tuple[float, bool]:
        """CPU time of all members, and whether one would run if a core were free."""
        states = [state for process_id in self._members if (state := look_at(process_id))]
        return sum(state.cpu_s for state in states), any(state.letter in "RD" for state in states)
