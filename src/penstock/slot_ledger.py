"""What the later stages tell the stream table about each slot; shared memory when the stages are processes.

A slot may serve a new stream only when every request that was handed on with it has come out at the far end: otherwise
the old stream's last chunk and the new one's first could meet in one batch. Each cell has one writer, so no locks.
"""

import os
from pathlib import Path

import numpy as np

STAGES = ("encoder", "decoder")


class SlotLedger:
    """Counters of S slots: [stage, (requests settled, latest failed generation), slot], int64."""

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes, made and zeroed by whoever comes first; None within one."""
        shape = (len(STAGES), 2, slots)
        if path is None:
            self._cells = np.zeros(shape, np.int64)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, self._bytes(shape))  # does nothing to a file of that size
        finally:
            os.close(descriptor)
        # As a plain array: numpy makes every look at a memmap ten times as dear.
        self._cells = np.asarray(np.memmap(path, np.int64, "r+", shape=shape))

    @staticmethod
    def _bytes(shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * np.dtype(np.int64).itemsize

    def settled_requests(self) -> np.ndarray:
        """[S] requests of each slot that have left the pipeline since the start, by any way."""
        return self._cells[:, 0].sum(axis=0)

    def failed_generation(self, slot: int) -> int:
        """The latest generation of `slot` that a later stage has given up; 0 if none."""
        return max(self._cells[:, 1, slot].tolist())

    def settle(self, stage: str, slot: int) -> None:
        """Says that a request of `slot` went no further than `stage`: it was answered or refused there."""
        self._cells[STAGES.index(stage), 0, slot] += 1

    def fail(self, stage: str, slot: int, generation: int) -> None:
        """Says that `stage` lost this stream's state, so that the stream cannot go on."""
        cells = self._cells[STAGES.index(stage), 1]
        cells[slot] = max(int(cells[slot]), generation)
