"""What memory did while the machine's host took nothing: for soaks on shared hosts. Does no I/O.

A server that is held up has a backlog, and keeps the memory that it took for it. That is growth by steps, each with its
cause; a leak grows with the work, in undisturbed times too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from loadtest.soak_readings import Reading

MOST_STOLEN_CORES = 0.05
USUAL_RATE = (0.97, 1.03)
"""Of the usual number of answers: with fewer it falls behind, with more it catches up."""
_MIB = 2**20


@dataclass(frozen=True)
class Undisturbed:
    """All times between two readings in which the host took next to nothing and the answers came as usual."""

    seconds: float
    growth_mib: dict[str, float]
    """PSS of each process that was there all the time, added up over these times."""


def undisturbed(readings: Sequence[Reading]) -> Undisturbed:
    """Of the readings under load."""
    pairs = list(pairwise(readings))
    usual = median([_per_s(pair, "answered") for pair in pairs] or [0.0])
    calm = [
        pair
        for pair in pairs
        if _per_s(pair, "stolen_cpu_s") < MOST_STOLEN_CORES
        and USUAL_RATE[0] * usual <= _per_s(pair, "answered") <= USUAL_RATE[1] * usual
    ]
    lasting = set.intersection(*(set(reading.processes) for reading in readings)) if readings else set()
    growth_mib = {
        name: sum(after.processes[name].pss_bytes - before.processes[name].pss_bytes for before, after in calm) / _MIB
        for name in sorted(lasting)
    }
    return Undisturbed(sum(after.time_s - before.time_s for before, after in calm), growth_mib)


def _per_s(pair: tuple[Reading, Reading], field: str) -> float:
    before, after = pair
    return (getattr(after, field) - getattr(before, field)) / (after.time_s - before.time_s)
