"""The number of streams over time, the measured windows, and each user's start and recordings.

A window begins when all its streams have started, each at a random moment of `stagger_s` seconds.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

SETTLE_S = 2.0
"""Between the last stream's start and the window: Locust needs a moment to spawn users."""
RAMP_WINDOWS = 8


@dataclass(frozen=True)
class Window:
    """One measurement, in seconds from the start of the test."""

    streams: float
    """The mean, where the number grows in the window."""
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Plan:
    """A test from its start to its end."""

    duration_s: float
    stagger_s: float
    """Streams that are added at once start within this time."""
    streams_at: Callable[[float], int]
    """Returns the number of streams at a moment before the end."""
    windows: tuple[Window, ...]


def sweep(counts: Sequence[int], measured_s: float, stagger_s: float) -> Plan:
    """Plans one number of streams after another, each measured for `measured_s` seconds; one number: constant load."""
    if not counts or min(counts) < 1 or not measured_s > 0:
        raise ValueError(f"streams are {list(counts)} for {measured_s:g} s, expected positive numbers")
    warm_up_s = stagger_s + SETTLE_S
    step_s = warm_up_s + measured_s
    windows = tuple(Window(streams, i * step_s + warm_up_s, (i + 1) * step_s) for i, streams in enumerate(counts))
    return Plan(
        step_s * len(counts), stagger_s, lambda now_s: counts[min(int(now_s / step_s), len(counts) - 1)], windows
    )


def ramp(first: int, last: int, duration_s: float) -> Plan:
    """Plans streams that grow evenly from `first` to `last`, measured in equal windows."""
    if not 1 <= first <= last or not duration_s > 0:
        raise ValueError(f"a ramp from {first} to {last} streams in {duration_s:g} s, expected 1 <= first <= last")

    def streams_at(now_s: float) -> int:
        return first + int((last - first) * min(1.0, now_s / duration_s) + 0.5)

    edges_s = [duration_s * i / RAMP_WINDOWS for i in range(RAMP_WINDOWS + 1)]
    windows = tuple(
        Window((streams_at(begin_s) + streams_at(end_s)) / 2, begin_s, end_s) for begin_s, end_s in pairwise(edges_s)
    )
    return Plan(duration_s, min(1.0, duration_s / RAMP_WINDOWS), streams_at, windows)


class Schedule:
    """Start and recordings of user `number` on process `process`: random, but equal for equal seeds."""

    def __init__(self, seed: int, process: int, number: int):
        self._random = random.Random(f"{seed}/{process}/{number}")
        self._start = self._random.random()

    def start_s(self, stagger_s: float) -> float:
        """Seconds from the user's creation to its first recording, uniform over [0, stagger_s)."""
        return self._start * stagger_s

    def recordings(self, count: int) -> Iterator[int]:
        """Yields numbers below `count` without end: the same random order again and again."""
        order = self._random.sample(range(count), count)
        while True:
            yield from order
