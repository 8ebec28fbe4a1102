"""Progress of work on audio: one line on a terminal, rewritten in place."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")
_PERIOD_S = 0.2
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """Counts what is done; `out` shows it if it is a terminal, and nothing otherwise. Use as a context manager."""

    def __init__(
        self,
        out: TextIO,
        items: int,
        audio_s: float,
        unit: str = "files",
        label: str = "",
        clock: Callable[[], float] = time.monotonic,
    ):
        """items, audio_s: all of the work, 0 s if it is not known; unit: of the items, in the plural.

        label: stands in front.
        """
        self._out, self._clock = out, clock
        self._items, self._audio_s = items, audio_s
        self._unit, self._label = unit, f"{label}: " if label else ""
        self._items_done, self._audio_done_s = 0, 0.0
        self._is_shown = out.isatty() and os.environ.get("TERM") != "dumb"
        self._started_s = clock()
        self._drawn_s = float("-inf")

    def add_audio(self, audio_s: float) -> None:
        """Counts audio that has been recognized."""
        self._audio_done_s += audio_s
        self._draw()

    def add_item(self) -> None:
        """Counts an item that is done."""
        self._items_done += 1
        self._draw()

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """Passes items on and counts each."""
        for item in items:
            self.add_item()
            yield item

    def clear(self) -> None:
        """Removes the line, so that something else can be written; the next change draws it again."""
        if self._drawn_s > float("-inf"):
            self._out.write(_ERASE_LINE)
            self._out.flush()
            self._drawn_s = float("-inf")

    def summary(self) -> str:
        """The work done, in words: "20 files, 3:25 of audio in 0:04, 51.2 x real time"."""
        elapsed_s = self._clock() - self._started_s
        unit = self._unit.removesuffix("s") if self._items_done == 1 else self._unit
        return (
            f"{self._items_done} {unit}, {duration(self._audio_done_s)} of audio in {duration(elapsed_s)}, "
            f"{self._audio_done_s / max(elapsed_s, 1e-9):.1f} x real time"
        )

    def _draw(self) -> None:
        now_s = self._clock()
        if self._is_shown and now_s - self._drawn_s >= _PERIOD_S:
            self._drawn_s = now_s
            self._out.write(_ERASE_LINE + self._line(now_s - self._started_s))
            self._out.flush()

    def _line(self, elapsed_s: float) -> str:
        line = f"{self._label}{self._items_done} of {self._items} {self._unit}, {duration(self._audio_done_s)}"
        if not (elapsed_s > 0 and self._audio_done_s > 0):
            return line
        speed = self._audio_done_s / elapsed_s
        if not self._audio_s:  # not known
            return f"{line}, {speed:.1f} x real time"
        left_s = max(self._audio_s - self._audio_done_s, 0.0) / speed
        return f"{line} of {duration(self._audio_s)}, {speed:.1f} x real time, {duration(left_s)} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: 0:07, 1:02:30."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_s:02}" if hours else f"{minutes}:{whole_s:02}"
