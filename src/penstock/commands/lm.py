"""`penstock lm`: builds an n-gram language model over a recognizer's tokens or words; compiles one for fast loading."""

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.commands import note
from penstock.errors import CorpusError, SettingError

if TYPE_CHECKING:
    from penstock.model.bundle import Checkpoint
    from penstock.scoring.ngram.estimation.kneser_ney import Discounts
    from penstock.scoring.ngram.estimation.text import TextTokenizer, WordText
    from penstock.scoring.ngram.io import TokenNames


MATCH_HINT = "does the text match the model's training text in case and punctuation?"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command and its two actions."""
    parser = subparsers.add_parser(
        "lm",
        description="N-gram language models over the tokens of a checkpoint, or over words.",
    )
    parts = parser.add_subparsers(required=True, metavar="ACTION")
    _add_build(parts)
    _add_compile(parts)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares `--model`."""
    parser.add_argument("--model", default=os.environ.get("PENSTOCK_MODEL"), help="bundle, .nemo file or hub id")


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def _add_build(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser(
        "build",
        help="build an ARPA file from text",
        description="Estimates an n-gram model (interpolated modified Kneser-Ney) over a recognizer's tokens or words.",
    )
    parser.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text, one sentence per line; -: standard input")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the ARPA file to write")
    _add_force(parser)
    parser.add_argument("--order", type=int, default=3, metavar="N", help="order of the model, 1 to 10 (3)")
    parser.add_argument(
        "--prune",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="drop n-grams with at most N occurrences; one N per order, the last for all higher orders: 0 0 1",
    )
    parser.add_argument("--heldout", metavar="TEXT", help="print the perplexity on this held-out text")
    parser.add_argument(
        "--words",
        action="store_true",
        help="a model of words, for `penstock graph build`; without --model",
    )
    add_model(parser)
    parser.set_defaults(run=run_build)


def _add_compile(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser("compile", help="compile an ARPA file for fast loading")
    parser.add_argument("arpa", metavar="ARPA", help="the ARPA file, plain or compressed (gzip, bzip2, xz)")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="output file; its name ends in .safetensors"
    )
    _add_force(parser)
    parser.add_argument("--tokens", choices=("pieces", "offset"), help="notation of tokens in ARPA (default: detected)")
    add_model(parser)
    parser.set_defaults(run=run_compile)


def run_build(args: argparse.Namespace) -> int:
    """Prints the n-gram counts, and with --heldout the perplexity."""
    from penstock.reporting import check_writable
    from penstock.scoring.ngram.arpa import write_arpa
    from penstock.scoring.ngram.estimation.build import build_lm

    check_writable(args.out, args.force, "--out")
    if args.words and args.model not in (None, os.environ.get("PENSTOCK_MODEL")):
        raise SettingError("--model is given with --words, whose model has no tokens; accepted: one of them")
    if any(count < 0 for count in args.prune):
        raise SettingError(f"--prune holds {min(args.prune)}, expected counts from 0 on")
    if args.heldout:
        _check_heldout(args)
    text, units = _open_text(args), "words" if args.words else "tokens"
    sentences: Iterable[list[int]] = text.read(args.text)
    if args.words:
        sentences = list(sentences)  # the words are known at the end of the text
    built = build_lm(sentences, text.names, args.order, args.prune)
    if not args.words:  # a text has no words that its model lacks
        warn_of_unknown(text)
    _warn_of_fallback(built.discounts, 1 if args.words else 2)
    write_arpa(built.arpa, args.out)
    print(f"{args.out}: {text.sentences} sentences, {text.tokens} {units}")
    for order, count in enumerate(built.arpa.counts, start=1):
        print(f"{order}-grams: {count}")
    if args.heldout:
        _print_perplexity(args, text.names, units)
    return 0


def _open_text(args: argparse.Namespace, names: "TokenNames | None" = None) -> "TextTokenizer | WordText":
    """A reader of text; names: of a finished model."""
    from penstock.scoring.ngram.estimation.text import TextTokenizer, WordText

    if args.words:
        return WordText(names.pieces if names else None)
    checkpoint = open_checkpoint(args.model)
    return TextTokenizer(checkpoint.tokenizer_path, checkpoint.config.textless_labels)


def _check_heldout(args: argparse.Namespace) -> None:
    if args.heldout == "-":
        if "-" in args.text:
            raise SettingError("--heldout - and TEXT -: standard input can be read once only")
    elif not os.path.exists(args.heldout):
        raise SettingError(f"--heldout: {args.heldout}: No such file or directory")


def run_compile(args: argparse.Namespace) -> int:
    """Prints the size of the model."""
    from penstock.reporting import check_writable
    from penstock.scoring.ngram.io import TokenFormat, check_name, read_tables, read_token_names, save_tables

    check_name(args.out)
    check_writable(args.out, args.force, "--out")
    names = read_token_names(open_checkpoint(args.model).tokenizer_path)
    tables = read_tables(args.arpa, names, TokenFormat(args.tokens) if args.tokens else None)
    save_tables(tables, args.out, names)
    arcs, states = len(tables.arc_keys) + len(tables.root_scores), len(tables.backoff_scores)
    print(f"{args.out}: order {tables.order[0]}, {states} contexts, {arcs} arcs")
    return 0


def open_checkpoint(model: str | None) -> "Checkpoint":
    """The model of `--model`; SettingError without one."""
    from penstock.model.bundle import Checkpoint
    from penstock.model.resolve import resolve_model

    if not model:
        raise SettingError("--model is missing: a bundle directory, a .nemo file or a hub id")
    return Checkpoint(resolve_model(model))


def warn_of_unknown(text: "TextTokenizer | WordText", where: str = "") -> None:
    """Warns of tokens that the model's tokenizer does not know; where: the beginning of the message."""
    if text.unknown_tokens:
        found = f"{text.unknown_tokens} of {text.tokens} tokens are unknown to the model's tokenizer"
        note(f"warning: {where}{found}: {MATCH_HINT}")


def _warn_of_fallback(discounts: Sequence["Discounts"], first: int) -> None:
    """Names the orders from `first` on: a recognizer has few tokens, so any text is too little for those of order 1."""
    orders = [str(order) for order, each in enumerate(discounts, start=1) if each.is_fallback and order >= first]
    if orders:
        note(f"warning: too little text for the discounts of order {', '.join(orders)}: using 0.5, 1, 1.5")


def _print_perplexity(args: argparse.Namespace, names: "TokenNames", units: str) -> None:
    from penstock.scoring.ngram.io import TokenFormat, load_ngram_lm
    from penstock.scoring.ngram.lm import measure_perplexity

    text = _open_text(args, names)
    lm = load_ngram_lm(args.out, names, token_format=TokenFormat.PIECES)
    perplexity = measure_perplexity(lm, text.read([args.heldout]))
    if not perplexity.sentences:
        raise CorpusError(f"{args.heldout}: there is no text")
    print(
        f"perplexity {perplexity.per_token:.3f} per {units[:-1]} over {perplexity.sentences} sentences, "
        f"{perplexity.tokens} {units}, {text.unknown_tokens} of them unknown"
    )
