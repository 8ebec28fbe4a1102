"""DrainBoard: how a launcher lets the live streams of a server end, in memory that it shares with the stream table.

Does not import numpy or torch: a launcher starts without them.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Literal

_FIRST_SLOT, _FIELDS = 5, 4


class Phase(IntEnum):
    """The requests that the stream table accepts."""

    SERVING = 0
    DRAINING = 1
    """No new streams."""
    CLOSED = 2
    """No requests."""
    OVER = 3
    """All streams end, also those of which no request comes."""


class _Cell:
    """A cell of the whole board."""

    def __init__(self, index: int):
        self._index = index

    def __get__(self, board: "DrainBoard", owner: object = None) -> int:
        return board._cells[self._index]

    def __set__(self, board: "DrainBoard", value: int) -> None:
        board._cells[self._index] = value


class DrainBoard:
    """Cells of 64 bits: the phase, whether a stream is being admitted, when a step began, two of the speaker model's
    steps, then four for each slot.

    The launcher writes the phase, the speaker model its own two, and the stream table the others: times in ns of the
    machine's monotonic clock.
    """

    phase = _Cell(0)
    """Number of a `Phase`."""
    is_admitting = _Cell(1)
    """1 from before the stream table reads the phase for a new stream until the stream has its time; else 0."""
    step_began_ns = _Cell(2)
    """Time at which the current step began; 0 between steps."""

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared with the launcher, created with zeros; None within one process."""
        self._cells = shared_cells(_FIRST_SLOT + _FIELDS * slots, "q", path)
        fields = (self._cells[first : first + slots] for first in range(_FIRST_SLOT, len(self._cells), slots))
        self.times_ns, self.generations, self.forwarded, self.has_speakers = fields
        """By slot, shared, to be written to.

        `times_ns`: when its live stream sent its last request, later by steps since then; minus when its stream was
        closed, until its requests are known to have settled; else 0. Of its latest stream: the generation of its
        `Lease`, the requests that went to the later stages, 1 if it asked for speakers.
        """

    @classmethod
    def attach(cls, path: Path) -> "DrainBoard | None":
        """The board that a stream table has created at `path`; None if there is none."""
        try:
            return cls((path.stat().st_size // 8 - _FIRST_SLOT) // _FIELDS, path)
        except (OSError, ValueError):
            return None

    @contextmanager
    def speaker_step(self) -> Iterator[None]:
        """A step of the speaker model: streams whose requests wait for its end are not idle."""
        # Cells of its own: the speaker model is another process than the stream table, and a cell has one writer.
        self._cells[3] = time.monotonic_ns()
        try:
            yield
        finally:
            # In this order a reader in between finds too much time, and no stream idle; in the other one too little.
            self._cells[4] += time.monotonic_ns() - self._cells[3]
            self._cells[3] = 0

    @property
    def speaker_busy_s(self) -> float:
        """Seconds in all these steps."""
        began_ns, busy_ns = self._cells[3:5]
        return (busy_ns + (time.monotonic_ns() - began_ns if began_ns else 0)) / 1e9

    def is_live(self, slot: int, generation: int) -> bool:
        """True if this is the slot's latest stream, and open."""
        return self.times_ns[slot] > 0 and self.generations[slot] == generation

    def is_over(self, slot: int, generation: int) -> bool:
        """True if this stream was closed and its requests have settled, or the slot has another stream."""
        return self.times_ns[slot] == 0 or self.generations[slot] != generation

    def live_streams(self, silent_s: float = float("inf"), ended_generations: Sequence[int] = ()) -> int:
        """Live streams, without those that have sent no request for `silent_s`, without the time of steps.

        ended_generations: the ledger's, by slot; those streams do not count, the stream table closes them with its next
        call.
        """
        # During a step as of its begin: what streams have sent since then has not been read yet.
        oldest_ns = (self.step_began_ns or time.monotonic_ns()) - 1e9 * silent_s
        done = set(enumerate(ended_generations))
        live = [slot for slot, time_ns in enumerate(self.times_ns.tolist()) if time_ns > 0 and time_ns >= oldest_ns]
        return sum(1 for slot in live if not self.generations[slot] or (slot, self.generations[slot]) not in done)

    def unsettled_slots(self, settled_requests: Callable[[int, int], int], lost_s: float = float("inf")) -> set[int]:
        """Slots of closed streams with requests that the later stages have not answered yet.

        Without those that were closed more than `lost_s` ago. settled_requests: the ledger's, by slot and generation.
        """
        oldest_ns = 1e9 * (time.monotonic() - lost_s)
        closed = [slot for slot, time_ns in enumerate(self.times_ns.tolist()) if time_ns < 0 and -time_ns >= oldest_ns]
        return {slot for slot in closed if settled_requests(slot, self.generations[slot]) < self.forwarded[slot]}


def shared_cells(count: int, code: Literal["i", "q"], path: Path | None) -> "memoryview[int]":
    """Returns `count` integers in memory that processes share, zero at first; code: "i" for 32 bits, "q" for 64.

    path: a file that several processes map; None within one process. One cell is read and written at once.
    """
    size = count * memoryview(bytes(8)).cast(code).itemsize
    if path is None:
        return memoryview(bytearray(size)).cast(code)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # does nothing to a file of that size
        os.posix_fallocate(descriptor, 0, size)  # a disk that is full later would end the process by SIGBUS
        return memoryview(mmap.mmap(descriptor, size)).cast(code)
    finally:
        os.close(descriptor)
