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


class DrainBoard:
    """Cells of 64 bits: the phase, whether a stream is being admitted, when a step began, two of the speaker model's
    steps, then four for each slot.

    The launcher writes the phase, the speaker model its own two, and the stream table the others: times in ns of the
    machine's monotonic clock.
    """

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared with the launcher, created with zeros; None within one process."""
        self._slots = slots
        self._cells = shared_cells(_FIRST_SLOT + _FIELDS * slots, "q", path)

    @classmethod
    def attach(cls, path: Path) -> "DrainBoard | None":
        """The board that a stream table has created at `path`; None if there is none."""
        try:
            return cls((path.stat().st_size // 8 - _FIRST_SLOT) // _FIELDS, path)
        except (OSError, ValueError):
            return None

    @property
    def phase(self) -> int:
        """A number of `Phase`."""
        return self._cells[0]

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._cells[0] = phase

    @property
    def is_admitting(self) -> bool:
        """True from before the stream table reads the phase for a new stream until the stream has its time."""
        return bool(self._cells[1])

    @is_admitting.setter
    def is_admitting(self, is_admitting: bool) -> None:
        self._cells[1] = is_admitting

    @property
    def step_began_ns(self) -> int:
        """Time at which the current step began; 0 between steps."""
        return self._cells[2]

    @step_began_ns.setter
    def step_began_ns(self, began_ns: int) -> None:
        self._cells[2] = began_ns

    @contextmanager
    def speaker_step(self) -> Iterator[None]:
        """A step of the speaker model: streams whose requests wait for its end are not idle."""
        self._cells[3] = time.monotonic_ns()
        try:
            yield
        finally:
            self._cells[4] += time.monotonic_ns() - self._cells[3]
            self._cells[3] = 0

    @property
    def speaker_busy_s(self) -> float:
        """Seconds in all these steps."""
        began_ns, busy_ns = self._cells[3:5]
        return (busy_ns + (time.monotonic_ns() - began_ns if began_ns else 0)) / 1e9

    @property
    def times_ns(self) -> "memoryview[int]":
        """By slot, when its live stream sent its last request, later by steps since then; minus when its stream was
        closed, until its requests are known to have settled; else 0. Shared, to be written to, as the three below.
        """
        return self._field(0)

    @property
    def generations(self) -> "memoryview[int]":
        """By slot, that of its latest stream, as in its `Lease`."""
        return self._field(1)

    @property
    def forwarded(self) -> "memoryview[int]":
        """Requests of each slot's latest stream that went to the later stages."""
        return self._field(2)

    @property
    def has_speakers(self) -> "memoryview[int]":
        """By slot, 1 where its latest stream asked for speakers, else 0."""
        return self._field(3)

    def _field(self, index: int) -> "memoryview[int]":
        start = _FIRST_SLOT + index * self._slots
        return self._cells[start : start + self._slots]

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
