"""Was the load generator the bottleneck, and which resource ran out? Judges one window's figures; does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from loadtest.machine_use import MachineUse
from loadtest.processes import GENERATOR, SERVER
from loadtest.triton_metrics import ENSEMBLE, MemberTimes

LONGEST_P99_LAG_MS = 20.0
FULL_PROCESS = 0.9
"""Of one core: a process that runs one thread at a time has no more to give."""
FULL_MACHINE = 0.93
"""Of all cores: some is always lost to waiting."""
MOST_FOR_OTHERS = 0.1
"""Of all cores: with more, a full machine is not full of what is measured."""


@dataclass(frozen=True)
class GeneratorVerdict:
    """Whether the figures are the server's or the load generator's."""

    is_bottleneck: bool
    text: str


@dataclass(frozen=True)
class Finding:
    """A resource that was used up."""

    resource: str
    """For example "CPU of encoder"."""
    text: str


def judge_generator(lag_p99_ms: float, use: MachineUse) -> GeneratorVerdict:
    """A load generator that sends late measures itself. `lag_p99_ms` is NaN where nothing was sent."""
    if isnan(lag_p99_ms):
        return GeneratorVerdict(False, "The load generator sent nothing in this window.")
    busiest = f"its busiest process took {use.busiest_generator_cores:.2f} cores"
    if lag_p99_ms <= LONGEST_P99_LAG_MS:
        return GeneratorVerdict(False, f"The load generator kept time: p99 of its lag {lag_p99_ms:.1f} ms, {busiest}.")
    late = f"The load generator was late: p99 of its lag {lag_p99_ms:.1f} ms ({LONGEST_P99_LAG_MS:g} ms are allowed)"
    if use.busiest_generator_cores >= FULL_PROCESS:
        reason = f"{busiest}, which is all it can have: more --processes are needed"
    elif _is_host_in_the_way(use):
        reason = f"{_stolen(use)}: use a machine whose cores are its own"
    elif _are_others_in_the_way(use):
        reason = f"other programs took {use.other_cores:.2f} of the machine's {use.cores} cores: stop them"
    elif _is_machine_full(use):
        reason = f"it shares a machine whose {use.cores} cores were all busy: run it on another one"
    else:
        reason = f"{busiest}, other programs {use.other_cores:.2f}, of {use.cores}"
    return GeneratorVerdict(True, f"{late}; {reason}. The figures are its own too.")


def find_exhausted(
    generator: GeneratorVerdict, use: MachineUse, members: Mapping[str, MemberTimes], refusals: int, threads: int = 1
) -> list[Finding]:
    """Resources that were used up, the one that explains most first; `threads` are those of each member."""
    found = []
    if refusals:
        found.append(Finding("slots", f"{refusals} streams found no slot (UNAVAILABLE): raise --max-streams"))
    if generator.is_bottleneck and use.busiest_generator_cores >= FULL_PROCESS:
        found.append(Finding("the load generator", generator.text))
    found += _full_processes(use, threads)
    if _is_machine_full(use):
        shares = sorted(((share.cores, name) for name, share in use.processes.items()), reverse=True)
        parts = ", ".join(f"{name} {cores:.2f}" for cores, name in [*shares, (use.other_cores, "others")])
        stolen = f"; {_stolen(use)}" if _is_host_in_the_way(use) else ""
        found.append(Finding(_machine(use), f"{use.busy_cores:.2f} of {use.cores} cores busy: {parts}{stolen}"))
    if queue := _longest_queue(members):
        found.append(queue)
    if generator.is_bottleneck and not any(finding.resource == "the load generator" for finding in found):
        found.append(Finding("the load generator", generator.text))
    return found


def _is_machine_full(use: MachineUse) -> bool:
    return use.busy_cores + use.stolen_cores >= FULL_MACHINE * use.cores


def _is_host_in_the_way(use: MachineUse) -> bool:
    """True where the machine is full and a large part of it was not there to be had."""
    return _is_machine_full(use) and use.stolen_cores > MOST_FOR_OTHERS * use.cores


def _stolen(use: MachineUse) -> str:
    return f"its host gave {use.stolen_cores:.2f} of the machine's {use.cores} cores to others (steal)"


def _machine(use: MachineUse) -> str:
    """The resource's name."""
    if _is_host_in_the_way(use):
        return "CPU of the machine, by its host"
    return "CPU of the machine, by other programs" if _are_others_in_the_way(use) else "CPU of the machine"


def _are_others_in_the_way(use: MachineUse) -> bool:
    """True where the machine is full and what is neither server nor load generator has a large part in that."""
    return _is_machine_full(use) and use.other_cores > MOST_FOR_OTHERS * use.cores


def _full_processes(use: MachineUse, threads: int) -> list[Finding]:
    """Members that use all their threads. Triton itself has threads for every core: the machine's limit is its own."""
    members = [(share.cores, name) for name, share in use.processes.items() if name not in (GENERATOR, SERVER)]
    return [
        Finding(f"CPU of {name}", f"{name} used {cores:.2f} cores of the {threads} that it may use")
        for cores, name in sorted(members, reverse=True)
        if cores >= FULL_PROCESS * threads
    ]


def _longest_queue(members: Mapping[str, MemberTimes]) -> Finding | None:
    """The member before which requests waited longest, if longer than its work takes."""
    waiting = [(times.queue_ms, name) for name, times in members.items() if name != ENSEMBLE]
    if not waiting:
        return None
    queue_ms, name = max(waiting)
    times = members[name]
    if queue_ms <= times.compute_ms:
        return None
    work = f"computed {times.compute_ms:.1f} ms on batches of {times.batch:.1f}"
    return Finding(f"queue of {name}", f"requests waited {queue_ms:.1f} ms for {name}, which {work}")
