"""How a window's latencies are distributed: over their size (histogram) and over time (series). No I/O."""

import math

import numpy as np

from loadtest.checks import is_chunk, late_chunks
from penstock.reporting import percentiles_ms

_EDGES_MS = 2.0 ** (np.arange(4 * 17 + 1) / 4)
"""Four bins per doubling, from 1 ms to 131 s: a bin is 19 % wide."""
_MAX_POINTS = 120


def histogram(latency_s: np.ndarray) -> dict:
    """Counts latencies, [n] in seconds, in geometric bins without the empty ones at both ends.

    Values outside the bins count in the nearest one; those without an answer (infinite) are counted separately.
    """
    answered_ms = 1000 * latency_s[np.isfinite(latency_s)]
    counts, _ = np.histogram(np.clip(answered_ms, _EDGES_MS[0], _EDGES_MS[-1]), _EDGES_MS)
    filled = np.flatnonzero(counts)
    first, last = (filled[0], filled[-1] + 1) if filled.size else (0, 0)
    return {
        "edges_ms": _EDGES_MS[first : last + 1].round(3).tolist() if filled.size else [],
        "counts": counts[first:last].tolist(),
        "unanswered": len(latency_s) - len(answered_ms),
    }


def series(requests: np.ndarray, begin_s: float, end_s: float, chunk_s: float) -> dict:
    """Returns chunk latency and late chunks over time, at most 120 points of whole seconds each.

    requests: [n] of REQUEST with deadlines in [begin_s, end_s). `at_s` is the begin of each point, from `begin_s`.
    """
    step_s = max(1, math.ceil((end_s - begin_s) / _MAX_POINTS))
    points = max(1, math.ceil((end_s - begin_s) / step_s))
    chunks = requests[is_chunk(requests)]
    point = ((chunks["deadline_s"] - begin_s) // step_s).astype(np.int64)
    found: dict = {"step_s": step_s, "at_s": [], "chunks": [], "late_chunks": [], "p50_ms": [], "p95_ms": []}
    for index in range(points):
        latency_s = (chunks["answered_s"] - chunks["deadline_s"])[point == index]
        percentiles = percentiles_ms(latency_s)
        values = (
            index * step_s,
            len(latency_s),
            late_chunks(latency_s, chunk_s),
            percentiles["p50"],
            percentiles["p95"],
        )
        for name, value in zip(("at_s", "chunks", "late_chunks", "p50_ms", "p95_ms"), values, strict=True):
            found[name].append(value)
    return found
