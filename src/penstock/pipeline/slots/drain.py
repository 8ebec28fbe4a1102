"""DrainBoard: how a launcher lets the live streams of a server end, in memory that it shares with the stream table.

Does not import numpy or torch: a launcher starts without them.
"""

import time
from enum import IntEnum
from pathlib import Path

from penstock.pipeline.slots.shared_cells import shared_cells


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
    """Cells of 64 bits: the phase, then for each slot when its live stream sent its last request; 0 without a stream.

    The launcher writes the phase and the stream table the times, in ns of the machine's monotonic clock.
    """

    def __init__(self, slots: int, path: Path | None = None):
        """path: a file shared with the launcher, created with zeros; None within one process."""
        self._cells = shared_cells(1 + slots, "q", path)

    @classmethod
    def attach(cls, path: Path) -> "DrainBoard | None":
        """The board that a stream table has created at `path`; None if there is none."""
        try:
            return cls(path.stat().st_size // 8 - 1, path)
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
    def times_ns(self) -> "memoryview[int]":
        """Of each slot, when its live stream sent its last request; 0 without a stream. Shared, to be written to."""
        return self._cells[1:]

    def live_streams(self, silent_s: float = float("inf")) -> int:
        """Live streams, without those that have sent no request for `silent_s`."""
        oldest_ns = 1e9 * (time.monotonic() - silent_s)
        return sum(1 for time_ns in self._cells[1:].tolist() if time_ns and time_ns >= oldest_ns)
