"""Text that is redrawn in place on a terminal while it grows. Knows nothing of speech."""

import re
import shutil
import unicodedata
from collections.abc import Callable
from typing import TextIO

_UP = "\x1b[{}A"
_ERASE_BELOW = "\r\x1b[J"


class LiveText:
    """A block of lines at the cursor: each `draw` replaces what the one before it drew.

    `size` gives the terminal's (columns, rows). A block with more rows than the terminal shows its newest ones.
    """

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size):
        self._out = out
        self._size = size
        self._lines: list[str] = []

    def draw(self, text: str) -> None:
        """Shows the text, which may have several lines, in place of the one before."""
        columns, rows = self._size()
        # One column stays free: a terminal is not of one mind about the cursor after a full row.
        lines = [row for line in text.split("\n") for row in wrap(line, max(1, columns - 1))][-max(1, rows - 1) :]
        if lines != self._lines:
            self._out.write(self._erasure(columns) + "\n".join(lines))
            self._out.flush()
            self._lines = lines

    def clear(self) -> None:
        """Removes the block; the cursor is where it began."""
        columns, _ = self._size()
        self._out.write(self._erasure(columns))
        self._out.flush()
        self._lines = []

    def _erasure(self, columns: int) -> str:
        """Moves to the block's beginning; a terminal made narrower since has broken the rows up."""
        rows = sum(max(1, -(-cells(line) // max(1, columns))) for line in self._lines)
        return (_UP.format(rows - 1) if rows > 1 else "") + (_ERASE_BELOW if rows else "")


def wrap(line: str, columns: int) -> list[str]:
    """Breaks a line between words, and inside those that are longer than a row. An empty line is one empty row."""
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
    """Terminal columns that a text takes: two for wide characters, none for combining ones."""
    return sum(_character_cells(character) for character in text)


def _character_cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def printable(text: str) -> str:
    """The text with its control characters replaced, so that it cannot steer the terminal."""
    return "".join("\ufffd" if unicodedata.category(character) == "Cc" else character for character in text)
