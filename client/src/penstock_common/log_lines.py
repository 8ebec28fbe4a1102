"""Lines of a log, as server and gateway write them: text, or a JSON object each."""

import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS = get_args(LogLevel)
_MAX_FIELD_CHARACTERS = 200  # of a client's text: a line stays below the 4 KiB that a pipe keeps in one piece
_OWN_LINE = re.compile(r'(?:\{"time": "[^"]+", "level": "|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )(\w+)', re.ASCII)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Event(NamedTuple):
    """One line."""

    level: str
    source: str
    """A model, "server", "gateway" or "triton"."""
    message: str
    fields: Mapping[str, Any]
    """Numbers and texts, or what has a text, as an id; None is left out."""
    time_s: float
    """Since the epoch."""


def render(event: Event, log_format: str) -> str:
    """The event as one line without its newline."""
    fields = {name: _short(value) for name, value in event.fields.items() if value is not None}
    clock, milliseconds = time.gmtime(event.time_s), int(event.time_s * 1000) % 1000
    if log_format == "json":
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', clock)}.{milliseconds:03d}Z"
        head = {"time": stamp, "level": event.level, "source": event.source, "message": event.message}
        return json.dumps(head | fields)  # ASCII: the standard error of Triton's stubs has no other characters
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', clock)}.{milliseconds:03d}"
    shown = "".join(f" {name}={_text(value)}" for name, value in fields.items())
    line = f"{stamp} {event.level:<7} {event.source}: {' '.join(event.message.split())}{shown}"
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], line)


def level_of(line: str) -> str | None:
    """The level of a line that `render` made; None for any other line."""
    match = _OWN_LINE.match(line)
    return match[1].lower() if match and match[1].lower() in LEVELS else None


def is_logged(level: str, least: str) -> bool:
    """True if `level` is at or above `least`."""
    return LEVELS.index(level) >= LEVELS.index(least)


class LineFormatter(logging.Formatter):
    """Formats what a process logs, with the attribute `fields` of a record."""

    def __init__(self, source: str, log_format: str):
        super().__init__()
        self._source, self._format = source, log_format

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        message = record.getMessage()
        if record.exc_info:
            message += f": {self.formatException(record.exc_info)}"
        fields = getattr(record, "fields", {})
        level = "error" if record.levelno > logging.ERROR else record.levelname.lower()
        return render(Event(level, self._source, message, fields, record.created), self._format)


def _short(value: Any) -> int | float | str:
    if isinstance(value, float) and math.isfinite(value):  # JSON has no others
        return round(value, 3)
    if isinstance(value, int):
        return value
    text = str(value)
    return text if len(text) <= _MAX_FIELD_CHARACTERS else f"{text[:_MAX_FIELD_CHARACTERS]}..."


def _text(value: int | float | str) -> str:
    """A text is quoted unless it is one plain word, so that a client's text cannot imitate other fields."""
    if isinstance(value, str) and not re.fullmatch(r"[\w.,:/+@-]+", value, re.ASCII):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


class RateLimit:
    """Limits lines per second, so that clients do not fill the disk, and counts those that are left out."""

    def __init__(self, per_s: int, now_s: Callable[[], float] = time.monotonic):
        self._per_s, self._now_s = per_s, now_s
        self._second = self._lines = self._left_out = 0

    def passes(self) -> bool:
        """True if the next line may be written."""
        if (second := int(self._now_s())) != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        self._left_out += self._lines > self._per_s
        return self._lines <= self._per_s

    def take_left_out(self) -> int:
        """Lines that were left out since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out
