"""SlotLedger and LatencyTable: what the later stages report about each slot, in shared memory between processes.

A slot serves a new stream once all requests forwarded with it have left the pipeline. Otherwise the old stream's last
chunk and the new stream's first chunk could share a batch. Each cell has one writer, so there are no locks.
"""

import itertools
import math
from pathlib import Path

import numpy as np

from penstock.errors import ErrorCode
from penstock.pipeline.slots.drain import shared_cells

STAGES = ("encoder", "speakers", "decoder")
_FIELDS = range(7)
_SETTLED, _GENERATION, _FAILED_GENERATION, _FAILED_CODE, _ENDED_GENERATION, _WINDOWS, _WINDOWS_GENERATION = _FIELDS
_CODES = tuple(ErrorCode)
_BINS, _BINS_PER_DOUBLING = 136, 8  # 1 ms to 130 s, each bin 9 % wider than the one before
_CELLS = _BINS + 1  # by slot: the bins, then the longest time in ms, rounded up


class SlotLedger:
    """Cells [stage, field, slot] int64.

    Fields: requests settled, their generation, latest failed one, its error, latest one whose work is done, windows
    encoded, their generation.
    """

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared by the stages' processes, created with zeros by the first; None within one process."""
        shape = (len(STAGES), len(_FIELDS), slots)
        self._cells = np.frombuffer(shared_cells(math.prod(shape), "q", path), np.int64).reshape(shape)

    def settled_requests(self, slot: int, generation: int) -> int:
        """Returns how many requests of this generation of `slot` have left the pipeline, with a result or an error."""
        # Generation first: a writer publishes it last (see `settle`), so the count belongs to that generation. Earlier
        # generations are never queried once the slot has a new stream.
        cells = self._cells[:, :, slot]
        return sum(int(cell[_SETTLED]) for cell in cells if cell[_GENERATION] == generation)

    def failed_code(self, slot: int) -> ErrorCode:
        """Returns why the latest of its `failed_generations` failed."""
        cells = self._cells[:, :, slot]
        return _CODES[int(max(cells, key=lambda cell: cell[_FAILED_GENERATION])[_FAILED_CODE])]

    def failed_generations(
        self, slots: np.ndarray | slice | int = slice(None), before: str | None = None
    ) -> np.ndarray:
        """Returns the latest generation that a stage has rejected or lost, 0 if none, of slots [n] or all, [n] int64.

        before: only the stages before this one.
        """
        stages = len(STAGES) if before is None else STAGES.index(before)
        return self._cells[:stages, _FAILED_GENERATION, slots].max(axis=0)

    def dropped_generations(self) -> np.ndarray:
        """Returns the latest generation of each slot with requests that ended with the `speakers` process, [S] int64.

        They never settle. The launcher writes it: `penstock.serving.speaker_restarts`.
        """
        return self._cells[STAGES.index("speakers"), _FAILED_GENERATION]

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
            # A batch may have requests of two streams of a slot: the later one's count.
            latest = np.zeros_like(cells[_GENERATION])
            np.maximum.at(latest, slots[newer], generations[newer])
            renewed = slots[newer]
            # The generation last: a reader that finds it also finds the new count.
            cells[_GENERATION, renewed] = cells[_SETTLED, renewed] = 0
            cells[_GENERATION, renewed] = latest[renewed]
            held = cells[_GENERATION, slots]
        # Not `+= 1`, which would count a slot once however often it occurs.
        np.add.at(cells[_SETTLED], slots[generations == held], 1)

    def fail(self, stage: str, slot: int, generation: int, code: ErrorCode = ErrorCode.STREAM_LOST) -> None:
        """Marks a stream that `stage` has rejected or whose state it has lost: it cannot continue."""
        cell = self._cells[STAGES.index(stage), :, slot]
        if generation > cell[_FAILED_GENERATION]:
            # Before the generation: a reader that finds that also finds why it failed.
            cell[_FAILED_CODE] = _CODES.index(code)
        # A late request of an earlier stream must not hide that a later one failed.
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


class LatencyTable:
    """A histogram for each slot of how long its stream's chunks took. The decoder writes, the stream table reads."""

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
