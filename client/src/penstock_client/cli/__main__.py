"""The entry of `penstock-client` and of `python -m penstock_client.cli`."""

import os
import signal
import sys


def main() -> int:
    """Runs the command; returns the exit status, 130 after Ctrl-C.

    During the imports Ctrl-C ends the process by its signal: an exception inside an import would be printed.
    """
    _open_missing_streams()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock_client.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:
        return 130


def _open_missing_streams() -> None:
    """Opens the null device in place of a standard stream that is closed: else the next file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
