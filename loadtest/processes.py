"""CPU time, memory and descriptors of the server's processes and of the load generator's, from the system (psutil)."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from loadtest.triton_metrics import MEMBERS

SERVER = "tritonserver"
GENERATOR = "load generator"


@dataclass(frozen=True)
class ProcessUse:
    """What one process has used, or several of the same name together."""

    cpu_s: float
    rss_bytes: int
    """Resident memory; pages that processes share count in each."""
    pss_bytes: int
    """Proportional: a shared page counts by its part, so that these add up."""
    descriptors: int = 0
    """Open files and connections."""

    def __add__(self, other: "ProcessUse") -> "ProcessUse":
        return ProcessUse(
            self.cpu_s + other.cpu_s,
            self.rss_bytes + other.rss_bytes,
            self.pss_bytes + other.pss_bytes,
            self.descriptors + other.descriptors,
        )


@dataclass(frozen=True)
class Usage:
    """One reading."""

    time_s: float
    machine_cpu_s: float
    """Busy seconds of all cores, by whatever process."""
    processes: Mapping[str, ProcessUse] = field(default_factory=dict)
    """By name; the load generator's added up."""
    generator_cpu_s: Mapping[int, float] = field(default_factory=dict)
    """Process id -> CPU time of each process of the load generator on this machine."""
    stolen_cpu_s: float = 0.0
    """In which cores of a virtual machine had work to do and its host let them wait; see `stolen_cpu_s`."""


def machine_cpu_s() -> float:
    """User, nice, system and interrupt seconds of all cores."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def stolen_cpu_s() -> float:
    """Seconds of all cores that a virtual machine's host has given to others (steal); 0 where it does not say."""
    return getattr(psutil.cpu_times(), "steal", 0.0)


def process_use(process_ids: Iterable[int]) -> ProcessUse:
    """Of processes together. One that has ended, or is another user's, counts as nothing."""
    total = ProcessUse(0.0, 0, 0)
    for process_id in process_ids:
        try:
            process = psutil.Process(process_id)
            cpu, memory, descriptors = process.cpu_times(), process.memory_full_info(), process.num_fds()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += ProcessUse(cpu.user + cpu.system, memory.rss, memory.pss, descriptors)
    return total


def server_processes(server_id: int) -> dict[str, list[int]]:
    """Name ("tritonserver" and the members') -> process ids. Empty where there is no such process."""
    found: dict[str, list[int]] = {}
    try:
        server = psutil.Process(server_id)
        family = [server, *server.children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in family:
        try:
            found.setdefault(_name(process.cmdline()), []).append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def generator_processes() -> list[int]:
    """This process and all below it: those that Locust forked, and those that play the streams."""
    own = psutil.Process(os.getpid())
    return [own.pid, *(child.pid for child in own.children(recursive=True))]


def _name(command_line: list[str]) -> str:
    """A member's stub is called with the path of its model."""
    words = " ".join(command_line)
    return next((member for member in MEMBERS if f"/{member}/1/model.py" in words), SERVER)
