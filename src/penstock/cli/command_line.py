"""The command line of `penstock`: its subcommands, and how errors end it."""

import contextlib
import errno
import os
import sys

from penstock.errors import ErrorCode, PenstockError
from penstock.version import __version__
from penstock_client.declaration import Parser

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def build_parser() -> Parser:
    """The parser with all subcommands."""
    from penstock.commands import adapt, compare, evaluate, graph, health, import_model, lm, serve, transcribe

    parser = Parser(
        prog="penstock",
        description="Streaming speech recognition for NeMo FastConformer models on Triton Inference Server.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (import_model, serve, health, transcribe, evaluate, compare, adapt, lm, graph):
        command.add_parser(subparsers)
    return parser


def run(parser: Parser, arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status. KeyboardInterrupt is the caller's."""
    try:
        args = parser.parse_args(arguments)
        status = args.run(args)
        sys.stdout.flush()
        return status
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has ended
        _abandon_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        _abandon_output()
        place = error.filename or "standard output"
        print(
            f"penstock: error: {ErrorCode.OUTPUT_FAILED.name}: {place}: {os.strerror(error.errno).lower()}",
            file=sys.stderr,
        )
        return 1


def _abandon_output() -> None:
    """Discards what could not be written: Python would try again at its end, and print a traceback."""
    with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
