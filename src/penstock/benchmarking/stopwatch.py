"""Times pieces of work that take turns. Knows not what they do."""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch


class Spread(NamedTuple):
    """Seconds of all repeats."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """At least one."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))


class Timed(NamedTuple):
    """One piece of work."""

    rounds_s: tuple[float, ...]
    """Seconds of each round that counts."""
    result: Any
    """What the last repeat returned."""

    @property
    def seconds(self) -> Spread:
        """Of all rounds that count."""
        return Spread.of(self.rounds_s)


def paired_ratio(rounds_s: Sequence[float], others_s: Sequence[float]) -> float:
    """The median of time to another's time in the same round: what slows a machine down for a while is in both."""
    return statistics.median(mine_s / others_s for mine_s, others_s in zip(rounds_s, others_s, strict=True))


def take_turns(
    works: Mapping[Hashable, Callable[[], Any]], repeats: int, warm_up_rounds: int, device: str
) -> dict[Hashable, Timed]:
    """Runs every work once a round, in another order each round; the first `warm_up_rounds` do not count."""
    clock = _time_on_cuda if device.startswith("cuda") else _time_on_host
    order, shuffle = list(works), random.Random(0).shuffle
    seconds: dict[Hashable, list[float]] = {name: [] for name in works}
    results = {}
    for turn in range(warm_up_rounds + repeats):
        shuffle(order)
        for name in order:
            taken, results[name] = clock(works[name])
            if turn >= warm_up_rounds:
                seconds[name].append(taken)
    return {name: Timed(tuple(seconds[name]), results[name]) for name in works}


def _time_on_host(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _time_on_cuda(work: Callable[[], Any]) -> tuple[float, Any]:
    """From an idle device until all kernels are done, with what the host takes in between."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    result = work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000.0, result
