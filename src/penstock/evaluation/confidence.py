"""How far a word error rate would vary with another set of utterances of the same kind: the bootstrap."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
SEED = 0
_LOW_PERCENT, _HIGH_PERCENT = 2.5, 97.5


class Interval(NamedTuple):
    """Rates between which 95 % of the resampled sets lie."""

    low: float
    high: float


def bootstrap_interval(edits: Sequence[int], reference_units: Sequence[int]) -> Interval | None:
    """95 % percentile interval of sum(edits) / sum(reference_units) over utterances drawn with replacement.

    Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", 2004. Always the same
    for the same input. Utterances count as independent, so speakers with many of them make it too narrow. None where
    there are no utterances; every utterance must have reference units.
    """
    if not len(edits):
        return None
    edits, units = np.asarray(edits, np.float64), np.asarray(reference_units, np.float64)
    draw, rates = np.random.default_rng(SEED), np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        chosen = draw.integers(len(edits), size=len(edits))
        rates[i] = edits[chosen].sum() / units[chosen].sum()
    low, high = np.percentile(rates, [_LOW_PERCENT, _HIGH_PERCENT])
    return Interval(float(low), float(high))
