"""The lines that a server logs: text or JSON, one event each. Used by the models and by `penstock serve`.

A model writes to its standard error, which `penstock serve` reads together with Triton's log.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from penstock.errors import cut

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS = get_args(LogLevel)
_MAX_FIELD_CHARACTERS = 200  # of a client's text: a line stays below the 4 KiB that a pipe keeps in one piece
_OWN_LINE = re.compile(r'(?:\{"time": "[^"]+", "level": "|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )(\w+)', re.ASCII)


class Event(NamedTuple):
    """One line."""

    level: str
    source: str
    """A model, "server" or "triton"."""
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
        return json.dumps(head | fields, ensure_ascii=False)
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', clock)}.{milliseconds:03d}"
    shown = "".join(f" {name}={_text(value)}" for name, value in fields.items())
    return f"{stamp} {event.level:<7} {event.source}: {' '.join(event.message.split())}{shown}"


def level_of(line: str) -> str | None:
    """The level of a line that `render` made; None for any other line."""
    found = _OWN_LINE.match(line)
    return found[1].lower() if found and found[1].lower() in LEVELS else None


def is_logged(level: str, least: str) -> bool:
    """True if `level` is at or above `least`."""
    return LEVELS.index(level) >= LEVELS.index(least)


def _short(value: Any) -> int | float | str:
    if isinstance(value, float):
        return round(value, 3)
    return value if isinstance(value, int) else cut(str(value), _MAX_FIELD_CHARACTERS)


def _text(value: int | float | str) -> str:
    """A text is quoted unless it is one plain word, so that a client's text cannot imitate other fields."""
    if isinstance(value, str) and not re.fullmatch(r"[\w.,:/+@-]+", value, re.ASCII):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


class _Formatter(logging.Formatter):
    def __init__(self, source: str, log_format: str):
        super().__init__()
        self._source, self._format = source, log_format

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += f": {self.formatException(record.exc_info)}"
        fields = getattr(record, "fields", {})
        return render(Event(record.levelname.lower(), self._source, message, fields, record.created), self._format)


def model_logger(model: str, log_format: str, level: str) -> logging.Logger:
    """Sends what this process logs to standard error in the server's format; returns the model's logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(model, log_format))
    root = logging.getLogger()
    root.addHandler(handler)
    own = logging.getLogger("penstock")
    own.setLevel(level.upper())
    logging.captureWarnings(True)
    return own


class RateLimit:
    """Lets through `per_s` events per second and counts the others: a client must not fill the disk with errors."""

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic):
        self._per_s = per_s
        self._clock = clock
        self._second = -1
        self._passed = 0
        self.held_back = 0
        """Events not let through since the last one that was."""

    def passes(self) -> bool:
        """True if the event may be logged. The caller logs `held_back` with it and resets it to 0."""
        if (second := int(self._clock())) != self._second:
            self._second, self._passed = second, 0
        self._passed += 1
        if self._passed <= self._per_s:
            return True
        self.held_back += 1
        return False
