"""What the later stages tell the stream table about each slot; shared memory when the stages are processes.

A slot is to serve a new stream once all requests that were handed on with it have come out at the far end: otherwise
the old stream's last chunk and the new one's first could meet in one batch. Each cell has one writer, so no locks.
"""

import os
from pathlib import Path

import numpy as np

STAGES = ("encoder", "decoder")
_SETTLED, _GENERATION, _FAILED_GENERATION = range(3)


class SlotLedger:
    """Of S slots: [stage, (requests settled, the generation they are of, latest failed generation), slot], int64."""

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes, made and zeroed by whoever comes first; None within one."""
        shape = (len(STAGES), 3, slots)
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

    def settled_requests(self, slot: int, generation: int) -> int:
        """Requests of this generation of `slot` that have left the pipeline, by any way."""
        # Generation first: a writer publishes it last (see `settle`), so the count is that generation's. Nobody asks
        # for an earlier one once its slot was given on.
        cells = self._cells[:, :, slot]
        return sum(int(cell[_SETTLED]) for cell in cells if cell[_GENERATION] == generation)

    def failed_generation(self, slot: int) -> int:
        """The latest generation of `slot` that a later stage has given up; 0 if none."""
        return max(self._cells[:, _FAILED_GENERATION, slot].tolist())

    def failed_generations(self) -> list[int]:
        """The same of every slot."""
        return self._cells[:, _FAILED_GENERATION].max(axis=0).tolist()

    def settle(self, stage: str, slot: int, generation: int) -> None:
        """Says that a request went no further than `stage`: it was answered or refused there.

        One of an earlier generation than the last does not count: its slot was given on without it.
        """
        cell = self._cells[STAGES.index(stage), :, slot]
        if generation == cell[_GENERATION]:
            cell[_SETTLED] += 1
        elif generation > cell[_GENERATION]:
            cell[_GENERATION], cell[_SETTLED] = 0, 1
            cell[_GENERATION] = generation

    def fail(self, stage: str, slot: int, generation: int) -> None:
        """Says that `stage` lost this stream's state, so that the stream cannot go on."""
        cell = self._cells[STAGES.index(stage), :, slot]
        cell[_FAILED_GENERATION] = max(int(cell[_FAILED_GENERATION]), generation)
