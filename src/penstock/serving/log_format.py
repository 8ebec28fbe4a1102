"""Log lines of a server's models on standard error."""

import logging
import sys

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
