"""The command `penstock`: its entry, which imports nothing that takes time."""

import io
import os
import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status, 130 after Ctrl-C.

    During the imports Ctrl-C ends the process by its signal: an exception inside an import would be printed.
    """
    _open_missing_streams()
    _accept_any_text()
    handler = signal.getsignal(signal.SIGINT)
    is_interruptible = handler is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import command_line

    arguments = sys.argv[1:] if arguments is None else arguments
    parser = command_line.build_parser(arguments)  # imports the subcommand
    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, handler)
        return command_line.run(parser, arguments)
    except KeyboardInterrupt:
        return 130


def _accept_any_text() -> None:
    """Lets standard output escape what its encoding lacks, as standard error does: a file's name may not be UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _open_missing_streams() -> None:
    """Opens the null device in place of a standard stream that is closed: else the next file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115
