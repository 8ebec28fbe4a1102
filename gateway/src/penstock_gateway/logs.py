"""The log on standard error, in the form of the server's. Lines of the access log have fields."""

import logging
import sys
import time
from collections.abc import Callable

from penstock_client.log_lines import LineFormatter

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


def configure_logs(log_format: str) -> None:
    """Sends all lines from INFO on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("gateway", log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_of_the_server)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """False for what uvicorn 0.54 writes for each handshake that is rejected, and each request that is not HTTP."""
    return not any(text in record.getMessage() for text in _OF_CLIENTS)
