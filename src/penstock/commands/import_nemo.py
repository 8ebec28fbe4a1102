"""`penstock import FILE.nemo DIR`: converts a NeMo checkpoint to a bundle."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import PenstockError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    _add_arguments(
        subparsers.add_parser(
            "import",
            help="convert a NeMo checkpoint to a bundle",
            description="Converts a NeMo checkpoint to a bundle.",
        )
    )


def run(args: argparse.Namespace) -> int:
    """Converts the checkpoint and prints the bundle's properties."""
    from penstock.model.nemo.importer import import_nemo  # here, because it imports torch

    checkpoint = import_nemo(args.nemo, args.directory, half=args.half, replace=args.force)
    encoder, transducer = checkpoint.config.encoder, checkpoint.config.transducer
    kind = checkpoint.config.head_name
    if transducer is not None and transducer.is_tdt:
        kind = kind.replace("TDT", f"TDT {list(transducer.tdt_durations)}")
    contexts = " ".join(map(str, encoder.contexts))
    print(
        f"{args.directory}: {checkpoint.source['class']}, {kind}, {encoder.n_layers} layers of {encoder.d_model}, "
        f"{checkpoint.config.vocabulary_size} tokens, contexts {contexts}"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command in a process of its own; an error is one line on stderr."""
    parser = argparse.ArgumentParser(prog="penstock import", description="Converts a NeMo checkpoint to a bundle.")
    _add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nemo", metavar="FILE.nemo", type=Path, help="checkpoint; it is read as untrusted data")
    parser.add_argument("directory", metavar="DIR", type=Path, help="bundle to write: a new or empty directory")
    parser.add_argument("--half", action="store_true", help="store the weights as float16")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    parser.set_defaults(run=run)


if __name__ == "__main__":
    raise SystemExit(main())
