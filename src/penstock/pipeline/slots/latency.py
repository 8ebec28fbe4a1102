"""LatencyTable: how long the requests of each stream took, written by the decoder and read by the stream table."""

import math
import os
from pathlib import Path

import numpy as np

_BINS, _BINS_PER_DOUBLING = 136, 8  # 1 ms to 130 s, each bin 9 % wider than the one before


class LatencyTable:
    """Counts [slot, bin] int32 and the longest time [slot], in shared memory. One process writes, one reads."""

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes, created with zeros by the first; None within one process."""
        shape = (slots, _BINS + 1)  # the last column: the longest time in ms, rounded up
        if path is None:
            self._cells = np.zeros(shape, np.int32)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, int(np.prod(shape)) * np.dtype(np.int32).itemsize)
        finally:
            os.close(descriptor)
        self._cells = np.asarray(np.memmap(path, np.int32, "r+", shape=shape))

    def reset(self, slot: int) -> None:
        """Forgets the slot's earlier stream."""
        self._cells[slot] = 0

    def add(self, slot: int, latency_ns: int) -> None:
        """Records one request."""
        latency_ms = latency_ns / 1e6
        position = int(_BINS_PER_DOUBLING * math.log2(max(latency_ms, 1.0)))
        row = self._cells[slot]
        row[min(position, _BINS - 1)] += 1
        row[_BINS] = max(row[_BINS], math.ceil(latency_ms))

    def summary(self, slot: int) -> tuple[float, float] | None:
        """Median (to within 5 %) and maximum in ms; None without a request."""
        counts, longest_ms = self._cells[slot, :_BINS], float(self._cells[slot, _BINS])
        if not counts.any():
            return None
        position = int(np.searchsorted(counts.cumsum(), (counts.sum() + 1) // 2))
        return min(2 ** ((position + 0.5) / _BINS_PER_DOUBLING), longest_ms), longest_ms
