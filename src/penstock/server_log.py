"""What tritonserver writes: kept, handed on once wanted, and searched for the reason why it did not start."""

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

_KEPT_LINES = 400
_LOAD_ERROR = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*?)\"?$")
_ERROR = re.compile(r"E\d{4} |error: |Bad option|\S*tritonserver: ")
_CRASH = re.compile(r"terminate called|  what\(\)|Signal \((?!15\))\d+\) received")  # 15: it was asked to end
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ")
_STATUS = re.compile(r"^(Internal|Invalid argument|Unavailable|Not found|Unknown): ")


class ServerLog:
    """Reads a server's output in a thread of its own, so that the server never waits for us."""

    def __init__(self, stream: IO[str], forward: Callable[[str], object] | None = None, hold_back: bool = True):
        """forward gets each line with its newline; with `hold_back` only those after `release`."""
        self._forward = forward
        self._is_released = not hold_back
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="server log", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Forwards what comes from now on, and forgets what was before: the server has become ready in spite of it."""
        self._is_released = True
        self._lines.clear()

    def lines(self) -> list[str]:
        """The latest lines, without newlines; copied, for the thread may be adding one."""
        return list(self._lines)

    def wait_until_closed(self, timeout_s: float) -> None:
        """Waits until the server has closed its output."""
        self._thread.join(timeout_s)

    def failure_reason(self) -> str:
        """Why the server ended: what each model said that failed to load, else how it crashed, else the last errors,
        else the last lines.
        """
        lines = self.lines()
        found = [match for line in lines if (match := _LOAD_ERROR.search(line))]
        reasons = [f"model {m['model']}: {_plain(m['reason'])}" for m in found]
        for kind in (_CRASH, _ERROR):
            reasons = reasons or [_plain(line) for line in lines if kind.match(line)][-3:]
        return "; ".join(dict.fromkeys(reasons)) or self.last_words()

    def last_words(self) -> str:
        """The last lines that are not blank."""
        return "; ".join([_plain(line) for line in self.lines() if line.strip()][-3:]) or "it said nothing"

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.rstrip("\n"))
                if self._forward and self._is_released:
                    self._forward(line)


def _plain(text: str) -> str:
    """A message without Triton's time stamp, status and quotes, and without the place of a Python exception."""
    text = _LOG_PREFIX.sub("", text).strip().strip('"').replace("\\n", "\n").replace('\\"', '"')
    text = _STATUS.sub("", text.partition("\n\nAt:\n")[0])
    return " ".join(text.removeprefix("CheckpointError: ").removeprefix("PenstockError: ").split())
