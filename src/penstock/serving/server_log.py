"""Reads the log of tritonserver: keeps the last lines, forwards them, and finds the reason of a failure."""

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

_KEPT_LINES = 400
_LOAD_ERROR = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*?)\"?$")
_ERROR = re.compile(r"E\d{4} |error: |Bad option|\S*tritonserver: ")
_CRASH = re.compile(r"terminate called|  what\(\)|Signal \((?!15\))\d+\) received")  # 15 is SIGTERM, an ordinary stop
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ")
_CODED_CLASS = re.compile(r"^\w+: (?=[A-Z]+(_[A-Z]+)+: )")  # a PenstockError has its own code
_STATUS = re.compile(r"^(Internal|Invalid argument|Unavailable|Not found|Unknown): ")


class ServerLog:
    """Reads a server's output in a thread, so that the server never waits for its reader."""

    def __init__(self, stream: IO[str], forward: Callable[[str], object] | None = None, hold_back: bool = True):
        """forward: called with each line and its newline; with `hold_back`, only after `release`."""
        self._forward = forward
        self._is_released = not hold_back
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="server log", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Forwards all later lines and drops the earlier ones: they did not keep the server from getting ready."""
        self._is_released = True
        self._lines.clear()

    def lines(self) -> list[str]:
        """The last lines without newlines; a copy, because the thread may append one."""
        return list(self._lines)

    def wait_until_closed(self, timeout_s: float) -> None:
        """Waits until the server has closed its output."""
        self._thread.join(timeout_s)

    def failure_reason(self) -> str:
        """Why the server ended: errors of models that failed to load, else the crash, else the last errors, else the
        last lines.
        """
        lines = self.lines()
        found = [match for line in lines if (match := _LOAD_ERROR.search(line))]
        reasons = [f"model {m['model']}: {_plain(m['reason'])}" for m in found]
        for kind in (_CRASH, _ERROR):
            reasons = reasons or [_plain(line) for line in lines if kind.match(line)][-3:]
        return "; ".join(dict.fromkeys(reasons)) or self.last_lines()

    def last_lines(self) -> str:
        """The last three lines that are not blank."""
        return "; ".join([_plain(line) for line in self.lines() if line.strip()][-3:]) or "its log is empty"

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
    return " ".join(_CODED_CLASS.sub("", text).split())
