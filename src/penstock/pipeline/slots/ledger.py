"""SlotLedger: what the later stages report to the stream table about each slot, in shared memory between processes.

A slot serves a new stream once all requests forwarded with it have left the pipeline. Otherwise the old stream's last
chunk and the new stream's first chunk could share a batch. Each cell has one writer, so there are no locks.
"""

import os
from pathlib import Path

import numpy as np

from penstock.errors import ErrorCode

STAGES = ("encoder", "decoder")
_FIELDS = range(7)
_SETTLED, _GENERATION, _FAILED_GENERATION, _FAILED_CODE, _ENDED_GENERATION, _WINDOWS, _WINDOWS_GENERATION = _FIELDS
_CODES = tuple(ErrorCode)


class SlotLedger:
    """Cells [stage, field, slot] int64.

    Fields: requests settled, their generation, latest failed one, its error, latest one whose work is done, windows
    encoded, their generation.
    """

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes, created with zeros by the first; None within one process."""
        shape = (len(STAGES), len(_FIELDS), slots)
        if path is None:
            self._cells = np.zeros(shape, np.int64)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, self._bytes(shape))  # does nothing to a file of that size
        finally:
            os.close(descriptor)
        # A plain array: indexing a memmap costs ten times as much.
        self._cells = np.asarray(np.memmap(path, np.int64, "r+", shape=shape))

    @staticmethod
    def _bytes(shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * np.dtype(np.int64).itemsize

    def settled_requests(self, slot: int, generation: int) -> int:
        """Returns how many requests of this generation of `slot` have left the pipeline, with a result or an error."""
        # Generation first: a writer publishes it last (see `settle`), so the count belongs to that generation. Earlier
        # generations are never queried once the slot has a new stream.
        cells = self._cells[:, :, slot]
        return sum(int(cell[_SETTLED]) for cell in cells if cell[_GENERATION] == generation)

    def failed_generation(self, slot: int, before: str | None = None) -> int:
        """Returns the latest generation of `slot` that a stage has rejected or lost; 0 if none.

        before: only the stages before this one.
        """
        stages = len(STAGES) if before is None else STAGES.index(before)
        return max(self._cells[:stages, _FAILED_GENERATION, slot].tolist())

    def failed_code(self, slot: int) -> ErrorCode:
        """Returns why `failed_generation` failed."""
        cells = self._cells[:, :, slot]
        return _CODES[int(max(cells, key=lambda cell: cell[_FAILED_GENERATION])[_FAILED_CODE])]

    def failed_generations(self, slots: np.ndarray | slice = slice(None), before: str | None = None) -> np.ndarray:
        """Returns `failed_generation` of slots [n], by default of all, [n] int64."""
        stages = len(STAGES) if before is None else STAGES.index(before)
        return self._cells[:stages, _FAILED_GENERATION, slots].max(axis=0)

    def all_settled(self, generations: np.ndarray) -> np.ndarray:
        """Returns `settled_requests` of every slot, [S] int64; generations: [S] int64."""
        is_counted = self._cells[:, _GENERATION] == generations  # read first, as in `settled_requests`
        return np.where(is_counted, self._cells[:, _SETTLED], 0).sum(axis=0)

    def settle(self, stage: str, slot: int, generation: int) -> None:
        """Counts a request that ended at `stage`, with a result or an error; see `settle_all`."""
        self.settle_all(stage, np.array([slot]), np.array([generation]))

    def settle_all(self, stage: str, slots: np.ndarray, generations: np.ndarray) -> None:
        """Counts requests [n] that ended at `stage`; a slot may occur several times.

        A request of an earlier generation than the latest does not count: its slot already has a new stream.
        """
        cells = self._cells[STAGES.index(stage)]
        held = cells[_GENERATION, slots]
        newer = generations > held
        if np.count_nonzero(newer):
            latest = np.zeros_like(cells[_GENERATION])
            np.maximum.at(latest, slots[newer], generations[newer])
            renewed = slots[newer]
            # The generation last: a reader that finds it also finds the new count.
            cells[_GENERATION, renewed] = cells[_SETTLED, renewed] = 0
            cells[_GENERATION, renewed] = latest[renewed]
            held = cells[_GENERATION, slots]
        np.add.at(cells[_SETTLED], slots[generations == held], 1)

    def fail(self, stage: str, slot: int, generation: int, code: ErrorCode = ErrorCode.STREAM_LOST) -> None:
        """Marks a stream that `stage` has rejected or whose state it has lost: it cannot continue."""
        cell = self._cells[STAGES.index(stage), :, slot]
        if generation > cell[_FAILED_GENERATION]:
            cell[_FAILED_CODE] = _CODES.index(code)
        cell[_FAILED_GENERATION] = max(int(cell[_FAILED_GENERATION]), generation)

    def end(self, stage: str, slot: int, generation: int) -> None:
        """Marks a stream whose work is done: its next reply is the last one. Only for streams that go on after END."""
        self._cells[STAGES.index(stage), _ENDED_GENERATION, slot] = generation

    def count_windows(self, stage: str, slot: int, generation: int, windows: int) -> None:
        """Stores how many windows of a live stream are encoded."""
        cell = self._cells[STAGES.index(stage), :, slot]
        cell[_WINDOWS_GENERATION] = 0  # a reader between two writes finds no windows
        cell[_WINDOWS] = windows
        cell[_WINDOWS_GENERATION] = generation

    def encoded_windows(self, slot: int, generation: int) -> int:
        """Returns how many windows of a live stream are encoded, or fewer."""
        counts = [int(cell[_WINDOWS]) for cell in self._cells[:, :, slot] if cell[_WINDOWS_GENERATION] == generation]
        return max(counts, default=0)

    def ended_generations(self) -> np.ndarray:
        """Returns the latest generation of each slot whose work is done, [S] int64; 0 if none."""
        return self._cells[:, _ENDED_GENERATION].max(axis=0)
