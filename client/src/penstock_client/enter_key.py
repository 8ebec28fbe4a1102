"""The Enter key of a terminal, or the lines of any other input, asked for without waiting. Knows nothing of speech."""

import os
import select
from types import ModuleType
from typing import Any

try:
    import termios
except ImportError:  # a system without it has no terminal that this could change
    termios: ModuleType | None = None  # type: ignore[no-redef]  # the import has given it a type


class EnterKey:
    """Lines that arrive at a file descriptor. Use as a context manager.

    Meanwhile a terminal does not show what is typed: a line break of its own would spoil what is drawn on it.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._has_ended = False
        self._settings: list[Any] | None = None

    def was_pressed(self) -> bool:
        """True where a line, maybe an empty one, has arrived since the last call. Never waits."""
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
