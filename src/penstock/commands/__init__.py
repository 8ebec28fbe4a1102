"""The subcommands of `penstock`, one per file, each with `add_parser(subparsers)` and `run(args) -> exit status`."""

import sys


def note(text: str) -> None:
    """Prints a line on standard error, behind the name of the program."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)
