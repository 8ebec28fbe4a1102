"""How many streams a test has at which moment, and the windows of time in which it measures. Knows no clock.

A window begins when the streams that it measures have all started, each at a random moment of `stagger_s` seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SETTLE_S = 2.0
"""Between the last stream's start and the window: spawning takes Locust a moment too."""
RAMP_WINDOWS = 8


@dataclass(frozen=True)
class Window:
    """One measurement, in seconds from the start of the test."""

    streams: float
    """The mean, where the number grows meanwhile."""
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Plan:
    """A test from its start to its end."""

    duration_s: float
    stagger_s: float
    """Time in which streams that are added at once start."""
    streams_at: Callable[[float], int]
    """Streams at a moment before the end."""
    windows: tuple[Window, ...]


def constant(streams: int, measured_s: float, stagger_s: float) -> Plan:
    """The same number of streams all the time."""
    return sweep([streams], measured_s, stagger_s)


def sweep(counts: Sequence[int], measured_s: float, stagger_s: float) -> Plan:
    """One number of streams after another, each measured for `measured_s` seconds."""
    if not counts or min(counts) < 1:
        raise ValueError(f"streams are {list(counts)}, expected one or more positive numbers")
    _check_positive(measured_s, "the time of measurement")
    warm_up_s = stagger_s + SETTLE_S
    step_s = warm_up_s + measured_s
    windows = tuple(Window(streams, i * step_s + warm_up_s, (i + 1) * step_s) for i, streams in enumerate(counts))
    return Plan(
        step_s * len(counts), stagger_s, lambda now_s: counts[min(int(now_s / step_s), len(counts) - 1)], windows
    )


def ramp(first: int, last: int, duration_s: float) -> Plan:
    """Streams that grow evenly from `first` to `last`, measured in equal windows."""
    if not 1 <= first <= last:
        raise ValueError(f"a ramp from {first} to {last} streams, expected 1 or more and not fewer at its end")
    _check_positive(duration_s, "the ramp's duration")

    def streams_at(now_s: float) -> int:
        return first + int((last - first) * min(1.0, now_s / duration_s) + 0.5)

    edges_s = [duration_s * i / RAMP_WINDOWS for i in range(RAMP_WINDOWS + 1)]
    windows = tuple(
        Window((streams_at(begin_s) + streams_at(end_s)) / 2, begin_s, end_s) for begin_s, end_s in pairwise(edges_s)
    )
    return Plan(duration_s, min(1.0, duration_s / RAMP_WINDOWS), streams_at, windows)


def _check_positive(value_s: float, what: str) -> None:
    if not value_s > 0:
        raise ValueError(f"{what} is {value_s:g} s, expected a positive number")
