"""Checks what a stream was told against what it should have been: every final word once, in order, in one stream only.

Each stream of a trial speaks something known, so that a word of another stream, a word too many and a word too few are
all the same thing: a difference.
"""

import threading
from dataclasses import dataclass, field

from tests.server.raw_stream import Reply


@dataclass(frozen=True)
class Spoken:
    """What a whole stream of known audio is told."""

    text: str
    words: tuple[tuple[str, int, int], ...]
    tokens: tuple[tuple[int, int], ...]


@dataclass
class History:
    """Everything that one stream was told, in the order of its requests."""

    name: str
    spoken: Spoken
    replies: list[Reply] = field(default_factory=list)
    error: str | None = None
    """What ended it before its time."""

    def problems(self) -> list[str]:
        """What is wrong. A stream that broke off must have been told the beginning of what it should have been."""
        found = []
        is_whole = bool(self.replies) and self.replies[-1].is_final
        if any(reply.is_final for reply in self.replies[:-1]):
            found.append("a final reply before the last one")
        if not is_whole and self.error is None:
            found.append("no final reply, and no error")
        processed = [reply.processed_s for reply in self.replies]
        if processed != sorted(processed):
            found.append(f"audio processed goes back: {processed}")
        for what in ("words", "tokens"):
            told = tuple(one for reply in self.replies for one in getattr(reply, what))
            expected = getattr(self.spoken, what)
            if told != (expected if is_whole else expected[: len(told)]):
                found.append(f"{what} {told}, expected {expected}")
        if is_whole and self.replies[-1].text != self.spoken.text:
            found.append(f"text {self.replies[-1].text!r}, expected {self.spoken.text!r}")
        return [f"stream {self.name}: {problem}" for problem in found]

    @property
    def is_whole(self) -> bool:
        """True where the stream was told all."""
        return bool(self.replies) and self.replies[-1].is_final


class Ledger:
    """The histories of a trial, of streams in any threads."""

    def __init__(self):
        self._histories: list[History] = []
        self._lock = threading.Lock()

    def open(self, name: str, spoken: Spoken) -> History:
        """A new stream's."""
        history = History(name, spoken)
        with self._lock:
            self._histories.append(history)
        return history

    @property
    def whole(self) -> int:
        """Streams that were told all."""
        return sum(history.is_whole for history in self._histories)

    @property
    def broken(self) -> list[History]:
        """Streams that were not."""
        return [history for history in self._histories if not history.is_whole]

    def check(self, may_break: bool = False) -> None:
        """AssertionError says what is wrong with which stream; a broken one is wrong, unless it `may_break`."""
        problems = [problem for history in self._histories for problem in history.problems()]
        if not may_break:
            problems += [f"stream {history.name} broke off: {history.error}" for history in self.broken]
        if problems:
            raise AssertionError(f"{len(problems)} problems: " + "; ".join(problems[:5]))
