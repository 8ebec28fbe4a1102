"""Undoes what a model's log changes in this process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_logging() -> Iterator[None]:
    """Removes the handlers that are added meanwhile; pytest's own come and go with each phase of a test."""
    root, own = logging.getLogger(), logging.getLogger("penstock")
    handlers, level = set(root.handlers), own.level
    try:
        yield
    finally:
        for handler in set(root.handlers) - handlers:
            if type(handler) is logging.StreamHandler:
                root.removeHandler(handler)
        own.setLevel(level)
        logging.captureWarnings(False)
