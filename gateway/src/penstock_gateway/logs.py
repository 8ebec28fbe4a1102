"""The log on standard error: text, or a JSON object per line. Lines of the access log have fields."""

import json
import logging
import re
import sys
import time
from collections.abc import Callable

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SPECIAL = re.compile('[\\s="]')
_OF_CLIENTS = ("without completing handshake", "Invalid HTTP request", "Unsupported upgrade request")


class LineLimit:
    """Limits lines per second, so that clients do not fill the disk, and counts those that are left out."""

    def __init__(self, per_s: int, now_s: Callable[[], float] = time.monotonic):
        self._per_s, self._now_s = per_s, now_s
        self._second = self._lines = self._left_out = 0

    def passes(self) -> bool:
        """Whether the next line may be written."""
        if (second := int(self._now_s())) != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        self._left_out += self._lines > self._per_s
        return self._lines <= self._per_s

    def take_left_out(self) -> int:
        """Lines that were left out since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out


def _shown(value: object) -> str:
    """A value of a field, with quotation marks where it could be taken for another field."""
    text = str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if not text or _SPECIAL.search(text) else text


class _Formatter(logging.Formatter):
    def __init__(self, is_json: bool):
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        if self._is_json:
            return json.dumps({"time": when, "level": record.levelname.lower(), "message": message + trace, **fields})
        shown = [f"{name}={_shown(value)}" for name, value in fields.items()]
        line = " ".join([when, record.levelname, message, *shown])
        return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], line) + trace


def configure_logs(log_format: str) -> None:
    """Sends all lines from INFO on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(log_format == "json"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_of_the_server)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """False for what uvicorn 0.54 writes for each handshake that is rejected, and each request that is not HTTP."""
    return not any(text in record.getMessage() for text in _OF_CLIENTS)
