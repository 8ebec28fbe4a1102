"""A minimal terminal emulator: what a user sees."""

import re

from penstock_common.writing import cells

_TOKENS = re.compile(r"\x1b\[(\d*)([AJ])|(.)", re.DOTALL)


class Terminal:
    """A screen of `columns` that grows downwards; `rows` limits how far up the cursor can go."""

    def __init__(self, columns: int, rows: int = 1000):
        self.columns = columns
        self.rows = rows
        self.lines: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    def write(self, text: str) -> None:
        for count, command, character in _TOKENS.findall(text):
            if command == "A":
                self._row = max(self._row - int(count or 1), len(self.lines) - self.rows, 0)
            elif command == "J":
                self.lines = [*self.lines[: self._row], self.lines[self._row][: self._column]]
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._new_line()
            else:
                self._put(character)

    def flush(self) -> None:
        pass

    @property
    def screen(self) -> list[str]:
        return ["".join(line) for line in self.lines]

    def _new_line(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self.lines):
            self.lines.append([])

    def _put(self, character: str) -> None:
        width = cells(character)
        if self._column + width > self.columns:
            self._new_line()
        line = self.lines[self._row]
        assert len(line) == self._column, "a row is only ever written from its left edge"
        line += [character] + [""] * (width - 1) if width else []
        self._column += width
