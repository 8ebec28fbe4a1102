"""Times tasks in interleaved rounds."""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch


class Spread(NamedTuple):
    """Seconds of all counted rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """The spread of one value or more."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))


class Timing(NamedTuple):
    """One task."""

    rounds_s: tuple[float, ...]
    """Seconds of each counted round."""
    result: Any
    """What the task returned in the last round."""

    @property
    def seconds(self) -> Spread:
        """Median, minimum and maximum."""
        return Spread.of(self.rounds_s)


def paired_ratio(rounds_s: Sequence[float], others_s: Sequence[float]) -> float:
    """The median over rounds of one time to the other in the same round, which cancels slow phases of the machine."""
    return statistics.median(mine_s / others_s for mine_s, others_s in zip(rounds_s, others_s, strict=True))


def ratios_to(name: str, taken: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, list[float]]]:
    """By case and by each other system: its times, one per round, relative to those of the system `name`."""
    return {
        case: {
            other: [its_s / base_s for its_s, base_s in zip(rounds_s, systems[name], strict=True)]
            for other, rounds_s in systems.items()
            if other != name
        }
        for case, systems in taken.items()
    }


def time_interleaved(
    tasks: Mapping[Hashable, Callable[[], Any]],
    repeats: int,
    warm_up_rounds: int,
    device: str,
    host_clock: Callable[[], float] = time.perf_counter,
) -> dict[Hashable, Timing]:
    """Runs every task once per round, in random order; the first `warm_up_rounds` are not counted.

    host_clock: without a GPU; `time.thread_time` for the CPU time of tasks with one thread.
    """
    clock = _time_on_cuda if device.startswith("cuda") else partial(_time_on_host, host_clock)
    order, shuffle = list(tasks), random.Random(0).shuffle
    seconds: dict[Hashable, list[float]] = {name: [] for name in tasks}
    results = {}
    for number in range(warm_up_rounds + repeats):
        shuffle(order)
        for name in order:
            taken, results[name] = clock(tasks[name])
            if number >= warm_up_rounds:
                seconds[name].append(taken)
    return {name: Timing(tuple(seconds[name]), results[name]) for name in tasks}


def _time_on_host(clock: Callable[[], float], task: Callable[[], Any]) -> tuple[float, Any]:
    started = clock()
    result = task()
    return clock() - started, result


def _time_on_cuda(task: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds from an idle device until all kernels are done, host time included, and the result."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    result = task()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000.0, result
