"""Times tasks and systems in interleaved rounds."""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.results import progress


def paired_ratio(rounds_s: Sequence[float], others_s: Sequence[float]) -> float:
    """The median over rounds of one time to the other in the same round, which cancels slow phases of the machine."""
    return statistics.median(mine_s / others_s for mine_s, others_s in zip(rounds_s, others_s, strict=True))


def time_interleaved(
    tasks: Mapping[Hashable, Callable[[], Any]], repeats: int, warm_up_rounds: int, device: str
) -> dict[Hashable, list[float]]:
    """Runs every task once per round, in random order; returns seconds of each round but the first ones.

    warm_up_rounds: those that are not counted.
    """
    clock = _time_on_cuda if device.startswith("cuda") else _time_on_host
    order, shuffle = list(tasks), random.Random(0).shuffle
    seconds: dict[Hashable, list[float]] = {name: [] for name in tasks}
    for _ in range(warm_up_rounds + repeats):
        shuffle(order)
        for name in order:
            seconds[name].append(clock(tasks[name]))
    return {name: taken[warm_up_rounds:] for name, taken in seconds.items()}


def _time_on_host(task: Callable[[], Any]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def _time_on_cuda(task: Callable[[], Any]) -> float:
    """Seconds from an idle device until all kernels are done, host time included."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    task()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000.0


def timed_rounds(
    rounds: int, systems: list, run: Callable[[Any], Any], audio_s: float
) -> tuple[dict[str, Any], dict[str, list[float]], dict[str, list[float]]]:
    """Runs every system in every round; returns by name its last result, and seconds and CPU seconds of each round."""
    found: dict[str, Any] = {}
    seconds, cpu_seconds = ({system.name: list[float]() for system in systems} for _ in range(2))
    for _ in range(rounds):
        for system in systems:
            started, started_cpu = time.perf_counter(), time.process_time()
            found[system.name] = run(system)
            seconds[system.name].append(time.perf_counter() - started)
            cpu_seconds[system.name].append(time.process_time() - started_cpu)
            rtfx, by_cpu = (audio_s / taken[system.name][-1] for taken in (seconds, cpu_seconds))
            progress(f"  {system.name}: RTFx {rtfx:.1f}, {by_cpu:.1f} by CPU time")
    return found, seconds, cpu_seconds
