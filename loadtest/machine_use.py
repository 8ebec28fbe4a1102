"""What server, load generator and others took of the machine between two readings. Does no I/O."""

from dataclasses import asdict, dataclass

from loadtest.processes import GENERATOR, Usage

_MIB = 2**20


@dataclass(frozen=True)
class ProcessShare:
    """One process, or several of a name. Memory is that at the end."""

    cores: float
    """CPU seconds a second."""
    rss_mib: float
    pss_mib: float
    pss_growth_mib: float


@dataclass(frozen=True)
class MachineUse:
    """Between two readings."""

    seconds: float
    cores: int
    busy_cores: float
    other_cores: float
    """Taken by programs that are neither server nor load generator; the server counts among them where its process is
    not known."""
    busiest_generator_cores: float
    """Of the load generator's processes; each has one core at most, since Python runs one thread at a time."""
    processes: dict[str, ProcessShare]
    stolen_cores: float = 0.0
    """For which there was work, and which the host of a virtual machine gave to others."""

    def document(self) -> dict:
        """As JSON values."""
        return asdict(self)


def machine_use(before: Usage, after: Usage, cores: int) -> MachineUse:
    """What happened between two readings of a machine with so many cores. A process that is new counts from 0."""
    seconds = after.time_s - before.time_s
    if not seconds > 0:
        raise ValueError(f"the readings are {seconds:g} s apart, expected the second to be later")
    processes = {}
    for name, use in after.processes.items():
        old = before.processes.get(name)
        processes[name] = ProcessShare(
            (use.cpu_s - (old.cpu_s if old else 0.0)) / seconds,
            use.rss_bytes / _MIB,
            use.pss_bytes / _MIB,
            (use.pss_bytes - old.pss_bytes) / _MIB if old else 0.0,
        )
    busy = (after.machine_cpu_s - before.machine_cpu_s) / seconds
    known = sum(share.cores for share in processes.values())
    generators = [
        (cpu_s - before.generator_cpu_s.get(process_id, 0.0)) / seconds
        for process_id, cpu_s in after.generator_cpu_s.items()
    ]
    stolen = (after.stolen_cpu_s - before.stolen_cpu_s) / seconds
    return MachineUse(seconds, cores, busy, max(0.0, busy - known), max(generators, default=0.0), processes, stolen)


def server_cores(use: MachineUse) -> float:
    """Of all processes but the load generator's."""
    return sum(share.cores for name, share in use.processes.items() if name != GENERATOR)
