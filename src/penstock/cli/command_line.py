"""The command line of `penstock`: its subcommands, and how errors end it."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from penstock.errors import ErrorCode, PenstockError
from penstock.version import __version__
from penstock_common.command_parser import Parser
from penstock_common.entry import abandon_output

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
COMMANDS = {
    "import": ("import_model", "convert a checkpoint to a bundle"),
    "serve": ("serve", "serve a checkpoint with Triton Inference Server"),
    "health": ("health", "probe a running server end to end"),
    "transcribe": ("transcribe", "transcribe audio files without a server"),
    "evaluate": ("evaluate", "measure word and character error rates on recordings"),
    "compare": ("compare", "compare two reports of evaluate: is the difference of their WER more than chance?"),
    "adapt": ("adapt", "adapt a factorized transducer to a domain, from text"),
    "lm": ("lm", "build or compile an n-gram language model"),
    "graph": ("graph", "build or describe a decoding graph"),
}
"""The module of each subcommand in penstock.commands, and its line in the help."""


def build_parser(arguments: Sequence[str]) -> Parser:
    """The parser for these arguments, with the subcommand that they begin with, else with all, for the help."""
    parser = Parser(
        prog="penstock",
        description="Streaming speech recognition for NeMo FastConformer models on Triton Inference Server.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    if arguments and arguments[0] in COMMANDS:
        importlib.import_module(f"penstock.commands.{COMMANDS[arguments[0]][0]}").add_parser(subparsers)
        return parser
    for name, (_, about) in COMMANDS.items():
        subparsers.add_parser(name, help=about)
    return parser


def run(parser: Parser, arguments: Sequence[str]) -> int:
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
        abandon_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        abandon_output()
        place = error.filename or "standard output"
        print(
            f"penstock: error: {ErrorCode.OUTPUT_FAILED.name}: {place}: {os.strerror(error.errno).lower()}",
            file=sys.stderr,
        )
        return 1
