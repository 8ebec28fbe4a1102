"""Percentiles of latencies, some of which may be infinite: audio that was never answered."""

from collections.abc import Sequence

import numpy as np

NAMES = ("p50", "p95", "p99", "max")


def percentiles_ms(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """p50, p95, p99 and the largest, in ms: each a value that was measured, the next one where it lies between two.

    NaN without values.
    """
    if not len(seconds):
        return dict.fromkeys(NAMES, float("nan"))
    found = np.percentile(np.asarray(seconds, np.float64), [50, 95, 99, 100], method="higher")  # inf has no mean
    return dict(zip(NAMES, (1000 * found).tolist(), strict=True))
