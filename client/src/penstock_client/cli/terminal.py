"""The terminal: text redrawn in place while it grows, and the Enter key."""

import os
import re
import select
import shutil
import threading
import unicodedata
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

try:
    import termios
except ImportError:  # Windows
    termios: ModuleType | None = None  # type: ignore[no-redef]  # the import has given it a type

_UP = "\x1b[{}A"
_ERASE_BELOW = "\r\x1b[J"


class LiveText:
    """A block of lines at the cursor: each `draw` replaces what the one before it drew.

    `size` gives the terminal's (columns, rows). A block with more rows than the terminal shows its last rows.
    Thread-safe: warnings come from another thread than results.
    """

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size):
        self._out = out
        self._size = size
        self._lines: list[str] = []
        self._drawing = threading.RLock()

    def draw(self, text: str) -> None:
        """Replaces the text that is shown; it may have several lines."""
        columns, rows = self._size()
        # One column stays free: terminals differ in where the cursor is after a full row.
        lines = [row for line in text.split("\n") for row in wrap(line, max(1, columns - 1))][-max(1, rows - 1) :]
        with self._drawing:
            if lines != self._lines:
                self._out.write(self._erasure(columns) + "\n".join(lines))
                self._out.flush()
                self._lines = lines

    def clear(self) -> None:
        """Removes the block; the cursor is back at its beginning."""
        columns, _ = self._size()
        with self._drawing:
            self._out.write(self._erasure(columns))
            self._out.flush()
            self._lines = []

    def _erasure(self, columns: int) -> str:
        """Moves to the block's beginning. A terminal made narrower meanwhile has wrapped the rows."""
        rows = sum(max(1, -(-cells(line) // max(1, columns))) for line in self._lines)
        return (_UP.format(rows - 1) if rows > 1 else "") + (_ERASE_BELOW if rows else "")


def wrap(line: str, columns: int) -> list[str]:
    """Breaks a line between words, and inside words longer than a row. An empty line is one empty row."""
    rows = [""]
    for word in re.findall(r"\s*\S+", line):
        if rows[-1] and cells(rows[-1]) + cells(word) > columns:
            rows.append("")
            word = word.lstrip()
        for character in word:
            if rows[-1] and cells(rows[-1]) + cells(character) > columns:
                rows.append("")
            rows[-1] += character
    return rows


def cells(text: str) -> int:
    """The width of a text in terminal columns: two for wide characters, none for combining ones."""
    return sum(_character_cells(character) for character in text)


def _character_cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def printable(text: str) -> str:
    """The text with its control characters replaced, so that it cannot control the terminal."""
    return "".join("\ufffd" if unicodedata.category(character) == "Cc" else character for character in text)


class EnterKey:
    """The Enter key of a terminal, or the lines of another input. Use as a context manager.

    Inside it the terminal does not echo: a line break would break up the text that is redrawn in place.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._has_ended = False
        self._settings: list[Any] | None = None

    def was_pressed(self) -> bool:
        """True where a line, also an empty one, has arrived since the last call. Does not wait."""
        pressed = False
        while not self._has_ended and select.select([self._descriptor], [], [], 0)[0]:
            typed = os.read(self._descriptor, 4096)
            self._has_ended = not typed
            pressed |= b"\n" in typed
        return pressed

    def __enter__(self) -> "EnterKey":
        if termios and os.isatty(self._descriptor):
            self._settings = termios.tcgetattr(self._descriptor)
            silent = termios.tcgetattr(self._descriptor)
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(self._descriptor, termios.TCSANOW, silent)
        return self

    def __exit__(self, *_: object) -> None:
        if self._settings is not None:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._settings)
            self._settings = None
