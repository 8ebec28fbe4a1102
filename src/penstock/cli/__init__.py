"""The command `penstock`: its entry, which imports nothing that takes time."""

import io
import sys
from collections.abc import Callable
from functools import partial

from penstock_common.entry import run_command


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status."""
    return run_command(partial(_load, sys.argv[1:] if arguments is None else arguments))


def _load(arguments: list[str]) -> Callable[[], int]:
    """Imports the subcommand."""
    # A file's name may not be UTF-8: what the encoding of standard output lacks is escaped, as of standard error.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    from penstock.cli import command_line

    return partial(command_line.run, command_line.build_parser(arguments), arguments)
