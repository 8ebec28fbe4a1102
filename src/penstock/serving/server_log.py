"""Reads the log of tritonserver and its models: keeps the last lines, forwards them, finds the reason of a failure."""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from penstock_common.log_lines import Event, is_logged, level_of, render

_KEPT_LINES = 400
_WAITING_LINES = 10_000
_LOAD_ERROR = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*?)\"?$")
_ERROR = re.compile(r"E\d{4} |error: |Bad option|\S*tritonserver: ")
_CRASH = re.compile(r"terminate called|  what\(\)|Signal \((?!15\))\d+\) received")  # 15 is SIGTERM, an ordinary stop
_LOG_PREFIX = re.compile(r"^([IWEF])\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ")
_TRITON_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_CODED_CLASS = re.compile(r"^\w+: (?=[A-Z]+(_[A-Z]+)+: )")  # a PenstockError has its own code
_STATUS = re.compile(r"^(Internal|Invalid argument|Unavailable|Not found|Unknown): ")
_NOT_STDERR = re.compile(rf"{_LOG_PREFIX.pattern}|error: creating server: |\s*$")
_LOST_PROCESS, _LOST = re.compile(r"Stub process '\w+' is not healthy\.?"), "its process has ended"
_FALSE_ALARM = re.compile(
    r"pinned system memory|pinned memory pool|CudaDriverHelper|DCGM|NVML|unable to create stream for|GPU metrics"
)
"""Messages of Triton on a host without a GPU."""


def end_of(model: str, ends: dict[str, str]) -> str:
    """Says how the model's process ended, by `penstock.serving.watchdog.ModelEnds.by_model`; else only "ended"."""
    return ends.get(model, ends.get("", "ended"))


class ServerLog:
    """Reads a server's output in a thread, so that the server never waits for its reader.

    Forwards what the models log. Of Triton's own lines it forwards those after `release` at or above `level`; with
    `is_verbose` all. With the format "json" each line is an object.
    """

    def __init__(
        self,
        stream: IO[str],
        forward: Callable[[str], object] | None = None,
        log_format: str = "text",
        level: str = "info",
        is_verbose: bool = False,
    ):
        """forward: called with each line and its newline, in a separate thread."""
        self._writer = _Writer(forward, log_format) if forward else None
        self._format, self._level, self._is_verbose = log_format, level, is_verbose
        self._forwards_triton = is_verbose
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.ends: Callable[[], dict[str, str]] = dict
        """`penstock.serving.watchdog.ModelEnds.by_model`."""
        self._thread = threading.Thread(target=self._read, args=(stream,), name="server log", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Forwards Triton's later lines and drops the earlier ones: they did not prevent the start."""
        self._forwards_triton = True
        self._lines.clear()

    def hold_back(self) -> None:
        """Forwards no more of Triton's lines unless verbose: while it stops, it reports what the stop has broken."""
        self._forwards_triton = self._is_verbose

    def lines(self) -> list[str]:
        """The last lines that no model has logged, without newlines; a copy, because the thread may append one."""
        return list(self._lines)

    def wait_until_closed(self, timeout_s: float) -> None:
        """Waits until the server has closed its output and all its lines are forwarded."""
        deadline_s = time.monotonic() + timeout_s
        self._thread.join(timeout_s)
        if self._writer:
            self._writer.wait(max(0.0, deadline_s - time.monotonic()))

    def load_failure(self) -> str | None:
        """The errors of models that failed to load, or None."""
        matches = [match for line in self.lines() if (match := _LOAD_ERROR.search(line))]
        ends, last_stderr_line = (self.ends(), self.last_stderr_line()) if matches else ({}, "")
        lost = {m["model"]: f"its process has {end_of(m['model'], ends)}{last_stderr_line}" for m in matches}
        reasons = (f"model {m['model']}: {_plain(m['reason']).replace(_LOST, lost[m['model']])}" for m in matches)
        return "; ".join(dict.fromkeys(reasons)) or None

    def failure_reason(self) -> str:
        """Why the server ended: errors of models that failed to load, else the crash, else the last errors, else the
        last lines.
        """
        if reason := self.load_failure():
            return reason
        lines, reasons = self.lines(), list[str]()
        for kind in (_CRASH, _ERROR):
            reasons = reasons or [_plain(line) for line in lines if kind.match(line)][-3:]
        return "; ".join(dict.fromkeys(reasons)) or self.last_lines()

    def last_stderr_line(self) -> str:
        """The last line that is neither Triton's nor of the log: what a library prints before a crash."""
        words = [line for line in self.lines() if not _NOT_STDERR.match(line)]
        return f"; the last line of standard error: {_plain(words[-1])}" if words else ""

    def last_lines(self) -> str:
        """The last three lines that are not blank."""
        return "; ".join([_plain(line) for line in self.lines() if line.strip()][-3:]) or "its log is empty"

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in map(str.rstrip, stream):
                is_own = level_of(line) is not None
                if not is_own and not _FALSE_ALARM.search(line):
                    self._lines.append(line)
                if self._writer and (is_own or self._is_wanted(line)):
                    self._writer.put(line if is_own else self._formatted(line))
        if self._writer:
            self._writer.close()

    def _is_wanted(self, line: str) -> bool:
        if self._is_verbose:
            return True
        return (
            self._forwards_triton
            and bool(line)
            and all(is_logged(_triton_level(line), least) for least in ("warning", self._level))
            and not _FALSE_ALARM.search(line)
        )

    def _formatted(self, line: str) -> str:
        if self._format == "text":
            return line
        return render(
            Event(_triton_level(line), "triton", _LOG_PREFIX.sub("", line).strip('"'), {}, time.time()), "json"
        )


class _Writer:
    """Calls `forward` in its own thread. Drops lines while that blocks, as a terminal does that a user has stopped."""

    def __init__(self, forward: Callable[[str], object], log_format: str):
        self._forward = forward
        self._format = log_format
        self._waiting: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log writer", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        self._waiting.put(None)

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._forward(f"{line}\n")
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    what = f"{dropped} lines of the log are missing: its reader is too slow"
                    self._forward(render(Event("warning", "server", what, {}, time.time()), self._format) + "\n")
            except (OSError, ValueError):  # the reader has gone
                self._forward = lambda line: None


def _triton_level(line: str) -> str:
    """The level of a line of Triton; other lines are a library's or a crash's."""
    match = _LOG_PREFIX.match(line)
    return _TRITON_LEVELS[match[1]] if match else "warning"


def _plain(text: str) -> str:
    """A message without Triton's time stamp, status and quotes, and without the place of a Python exception."""
    text = _LOG_PREFIX.sub("", text).strip().strip('"').replace("\\n", "\n").replace('\\"', '"')
    text = _STATUS.sub("", text.partition("\n\nAt:\n")[0])
    text = _LOST_PROCESS.sub(_LOST, text)
    return " ".join(_CODED_CLASS.sub("", text).split())
