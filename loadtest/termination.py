"""SIGTERM as Ctrl-C: what a command has started is ended, and what it has seen is written."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """SIGTERM has come, which, unlike Ctrl-C, may have gone to this process alone and not to those it has started."""


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Raises Terminated where SIGTERM comes. For the main thread."""

    def end(*_: object) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
