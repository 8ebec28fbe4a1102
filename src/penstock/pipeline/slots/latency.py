"""LatencyTable: how long the chunks of each stream took, written by the decoder and read by the stream table."""

import itertools
import math
from pathlib import Path

import numpy as np

from penstock.pipeline.slots.shared_cells import shared_cells

_BINS, _BINS_PER_DOUBLING = 136, 8  # 1 ms to 130 s, each bin 9 % wider than the one before
_CELLS = _BINS + 1  # of a slot: the bins, then the longest time in ms, rounded up


class LatencyTable:
    """A histogram of times for each slot, in shared memory. One process writes, one reads."""

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes; None within one process."""
        self._cells = np.frombuffer(shared_cells(slots * _CELLS, "i", path), np.int32).reshape(slots, _CELLS)

    def reset(self, slots: np.ndarray) -> None:
        """Forgets the earlier streams of the slots [n]."""
        self._cells[slots] = 0

    def add(self, slots: np.ndarray, latency_ns: int) -> None:
        """Records requests of slots [n] that took the same time; a slot may occur several times."""
        latency_ms = latency_ns / 1e6
        position = min(int(_BINS_PER_DOUBLING * math.log2(latency_ms)) if latency_ms > 1 else 0, _BINS - 1)
        np.add.at(self._cells[:, position], slots, 1)
        self._cells[slots, _BINS] = np.maximum(self._cells[slots, _BINS], math.ceil(latency_ms))

    def summary(self, slot: int) -> tuple[float, float] | None:
        """Median (to within 5 %) and maximum in ms; None without a request."""
        *counts, longest_ms = self._cells[slot].tolist()
        if not any(counts):
            return None
        half = (sum(counts) + 1) // 2
        position = next(i for i, total in enumerate(itertools.accumulate(counts)) if total >= half)
        return min(2 ** ((position + 0.5) / _BINS_PER_DOUBLING), float(longest_ms)), float(longest_ms)
