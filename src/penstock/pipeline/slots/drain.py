"""DrainBoard: how a launcher lets the live streams of a server end, in memory that it shares with the stream table.

Does not import numpy or torch: a launcher starts without them.
"""

import time
from enum import IntEnum
from pathlib import Path

from penstock.pipeline.slots.shared_cells import shared_cells

_FIRST_SLOT = 2


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
    """Cells of 64 bits: the phase, whether a stream is being admitted, then for each slot when its live stream sent
    its last request; 0 without a stream.

    The launcher writes the phase, and the stream table the others: times in ns of the machine's monotonic clock.
    """

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared with the launcher, created with zeros; None within one process."""
        self._cells = shared_cells(_FIRST_SLOT + slots, "q", path)

    @classmethod
    def attach(cls, path: Path) -> "DrainBoard | None":
        """The board that a stream table has created at `path`; None if there is none."""
        try:
            return cls(path.stat().st_size // 8 - _FIRST_SLOT, path)
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
    def times_ns(self) -> "memoryview[int]":
        """Of each slot, when its live stream sent its last request; 0 without a stream. Shared, to be written to."""
        return self._cells[_FIRST_SLOT:]

    def live_streams(self, silent_s: float = float("inf")) -> int:
        """Live streams, without those that have sent no request for `silent_s`."""
        oldest_ns = 1e9 * (time.monotonic() - silent_s)
        return sum(1 for time_ns in self.times_ns.tolist() if time_ns and time_ns >= oldest_ns)
