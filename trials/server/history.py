"""Checks a stream's replies against its reference: every final word once, in order, in one stream only.

Each stream of a trial has known audio, so that a word of another stream, an extra word and a missing word are all
differences.
"""

import threading
from dataclasses import dataclass, field

from trials.server.raw_stream import Reply


@dataclass(frozen=True)
class Expected:
    """The result of a whole stream of known audio."""

    text: str
    words: tuple[tuple[str, int, int], ...]
    tokens: tuple[tuple[int, int], ...]


@dataclass
class History:
    """One stream's replies, in the order of its requests."""

    name: str
    expected: Expected
    replies: list[Reply] = field(default_factory=list)
    error: str | None = None
    """What broke the stream."""

    def problems(self) -> list[str]:
        """Returns what is wrong. A broken stream must have received a prefix of its expected words."""
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
            received = tuple(one for reply in self.replies for one in getattr(reply, what))
            expected = getattr(self.expected, what)
            if received != (expected if is_whole else expected[: len(received)]):
                found.append(f"{what} {received}, expected {expected}")
        if is_whole and self.replies[-1].text != self.expected.text:
            found.append(f"text {self.replies[-1].text!r}, expected {self.expected.text!r}")
        return [f"stream {self.name}: {problem}" for problem in found]

    @property
    def is_whole(self) -> bool:
        """True where the stream received its final reply."""
        return bool(self.replies) and self.replies[-1].is_final


class Histories:
    """The histories of a trial's streams; thread-safe."""

    def __init__(self):
        self._histories: list[History] = []
        self._lock = threading.Lock()

    def open(self, name: str, expected: Expected) -> History:
        """Adds a new stream's history."""
        history = History(name, expected)
        with self._lock:
            self._histories.append(history)
        return history

    @property
    def whole(self) -> int:
        """Number of streams that received their final reply."""
        return sum(history.is_whole for history in self._histories)

    @property
    def broken(self) -> list[History]:
        """Histories of the other streams."""
        return [history for history in self._histories if not history.is_whole]

    def check(self, may_break: bool = False) -> None:
        """Raises AssertionError with the streams that are wrong; a broken one is, unless `may_break`."""
        problems = [problem for history in self._histories for problem in history.problems()]
        if not may_break:
            problems += [f"stream {history.name} broke: {history.error}" for history in self.broken]
        if problems:
            raise AssertionError(f"{len(problems)} problems: " + "; ".join(problems[:5]))
