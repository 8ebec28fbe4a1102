"""The entry of a command, before its imports: its standard streams, and Ctrl-C."""

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
