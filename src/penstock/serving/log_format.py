"""How the models of a server log: their lines on standard error, and a limit of lines per second."""

import logging
import sys
import time
from collections.abc import Callable

from penstock_client.log_lines import LineFormatter


def model_logger(model: str, log_format: str, level: str) -> logging.Logger:
    """Sends what this process logs to standard error in the server's format; returns the model's logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(model, log_format))
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
