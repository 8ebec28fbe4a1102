"""Did a quantity stay flat over hours? Its slope with an uncertainty, from readings in time. Does no I/O.

Memory goes up in steps that last, so readings that follow each other are far from independent. The slope is therefore
a straight line through the means of equal parts of the time, and its uncertainty comes from how far these means lie
from the line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PARTS = 10
READINGS_PER_PART = 3
_STUDENT_T_95 = 2.306
"""Two-sided, for PARTS - 2 = 8 degrees of freedom."""


@dataclass(frozen=True)
class Slope:
    """Units an hour."""

    per_hour: float
    uncertainty_per_hour: float
    """Half of the 95 % interval."""
    mean: float
    """Of the quantity itself."""

    @property
    def most_per_hour(self) -> float:
        """The upper end of the 95 % interval."""
        return self.per_hour + self.uncertainty_per_hour

    @property
    def least_per_hour(self) -> float:
        """The lower end."""
        return self.per_hour - self.uncertainty_per_hour


def slope(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Of readings in the order of their times. ValueError where a tenth of the time has fewer than three of them."""
    times, readings = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    span_s = float(times[-1] - times[0]) if len(times) else 0.0
    part = np.minimum((times - times[:1]) * PARTS / span_s, PARTS - 1).astype(int) if span_s > 0 else np.zeros(0, int)
    counts = np.bincount(part, minlength=PARTS)
    if counts.min() < READINGS_PER_PART:
        raise ValueError(f"{len(times)} readings in {span_s:.0f} s are too few: each tenth needs {READINGS_PER_PART}")
    hours = np.bincount(part, times - times[0]) / counts / 3600
    means = np.bincount(part, readings) / counts
    away = hours - hours.mean()
    spread = float((away**2).sum())
    per_hour = float((away * means).sum()) / spread
    residuals = means - means.mean() - per_hour * away
    error = math.sqrt(float((residuals**2).sum()) / (PARTS - 2) / spread)
    return Slope(per_hour, _STUDENT_T_95 * error, float(readings.mean()))


def judge(found: Slope, most_per_hour: float) -> bool | None:
    """True: flat, the whole interval lies below `most_per_hour`. False: none of it does. None: it cannot be told."""
    if found.most_per_hour <= most_per_hour:
        return True
    return False if found.least_per_hour > most_per_hour else None


def growth_of_highest(values: Sequence[float]) -> float:
    """The highest of the last fifth less the highest of the first; for counts, which have no noise of their own."""
    fifth = max(1, len(values) // 5)
    return max(values[-fifth:]) - max(values[:fifth])
