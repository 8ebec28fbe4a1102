"""The entry of a command, before its imports, and its end: standard streams, and Ctrl-C."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable


def run_command(load: Callable[[], Callable[[], int]]) -> int:
    """Runs the command that `load` imports; returns the exit status, 130 after Ctrl-C.

    During the imports Ctrl-C ends the process by its signal: an exception inside an import would be printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: the next file would get its number
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115
    handler = signal.getsignal(signal.SIGINT)
    is_interruptible = handler is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = load()
    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:
        return 130


def abandon_output() -> None:
    """Discards what could not be written: Python would try again at its end, and print a traceback."""
    with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
