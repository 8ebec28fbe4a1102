"""The command `penstock`."""

import argparse
import sys

from penstock.commands import evaluate, graph, health, import_nemo, lm, serve, transcribe
from penstock.errors import PenstockError
from penstock.version import __version__


def build_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Streaming speech recognition for NeMo FastConformer models on Triton Inference Server.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (import_nemo, serve, health, transcribe, evaluate, lm, graph):
        command.add_parser(subparsers)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status."""
    args = build_parser().parse_args(arguments)
    try:
        return args.run(args)
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has ended
        sys.stderr.close()
        return 1


if __name__ == "__main__":
    sys.exit(main())
