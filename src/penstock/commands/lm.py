"""`penstock lm`: language models over a recognizer's tokens: build one from text, compile one for quick loading."""

import argparse
import os
import sys
from pathlib import Path

from penstock.errors import PenstockError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command and its two parts."""
    parser = subparsers.add_parser("lm", help="build a language model from text", description=__doc__)
    parts = parser.add_subparsers(required=True, metavar="ACTION")
    _add_build(parts)
    _add_compile(parts)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=os.environ.get("PENSTOCK_MODEL"), help="bundle, .nemo file or hub id")


def _add_build(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser(
        "build",
        help="plain text to an ARPA file",
        description="Estimates an n-gram model (interpolated modified Kneser-Ney) over the tokens of a recognizer.",
    )
    parser.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text, one sentence a line; - for standard input")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the ARPA file to write")
    parser.add_argument("--order", type=int, default=3, metavar="N", help="longest n-gram, 1 to 10 (3)")
    parser.add_argument(
        "--prune",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="leave out n-grams seen so often or less, one number an order, the last for the rest: 0 0 1",
    )
    parser.add_argument("--heldout", metavar="TEXT", help="measure the perplexity on this text")
    _add_model(parser)
    parser.set_defaults(run=run_build)


def _add_compile(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser("compile", help="an ARPA file to a form that loads at once")
    parser.add_argument("arpa", metavar="ARPA", help="the ARPA file, plain or gzip")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="ends in .safetensors")
    parser.add_argument("--tokens", choices=("pieces", "offset"), help="how the file writes tokens (found out)")
    _add_model(parser)
    parser.set_defaults(run=run_compile)


def run_build(args: argparse.Namespace) -> int:
    """Prints n-grams of each order, and the perplexity where a text for it is given."""
    from penstock.fusion.arpa_writer import write_arpa
    from penstock.fusion.token_names import read_token_names
    from penstock.lm_training.build import build_lm
    from penstock.lm_training.text import TextTokenizer

    if any(count < 0 for count in args.prune):
        raise PenstockError(f"--prune holds {min(args.prune)}, expected counts from 0 on")
    if args.heldout:
        _check_heldout(args)
    tokenizer_path = _tokenizer_path(args.model)
    names, text = read_token_names(tokenizer_path), TextTokenizer(tokenizer_path)
    built = build_lm(text.read(args.text), names, args.order, args.prune)
    _warn(text, built.discounts)
    write_arpa(built.arpa, args.out)
    print(f"{args.out}: {text.sentences} sentences, {text.tokens} tokens")
    for order, count in enumerate(built.arpa.counts, start=1):
        print(f"{order}-grams: {count}")
    if args.heldout:
        _print_perplexity(args, tokenizer_path, names)
    return 0


def _check_heldout(args: argparse.Namespace) -> None:
    """Before the work, not after it."""
    if args.heldout == "-":
        if "-" in args.text:
            raise PenstockError("--heldout - and TEXT -: standard input can be read once only")
    elif not os.path.exists(args.heldout):
        raise PenstockError(f"--heldout: {args.heldout}: No such file or directory")


def run_compile(args: argparse.Namespace) -> int:
    """Prints what the model holds."""
    from penstock.fusion.ngram_file import read_tables, save_tables
    from penstock.fusion.token_names import TokenFormat, read_token_names

    names = read_token_names(_tokenizer_path(args.model))
    tables = read_tables(args.arpa, names, TokenFormat(args.tokens) if args.tokens else None)
    save_tables(tables, args.out, names)
    arcs, states = len(tables.arc_keys) + len(tables.root_scores), len(tables.backoff_scores)
    print(f"{args.out}: order {tables.order[0]}, {states} contexts, {arcs} arcs")
    return 0


def _tokenizer_path(model: str | None) -> Path:
    from penstock.checkpoint import Checkpoint
    from penstock.model_source import resolve_model

    if not model:
        raise PenstockError("--model is missing: a bundle directory, a .nemo file or a hub id")
    return Checkpoint(resolve_model(model)).tokenizer_path


def _warn(text, discounts) -> None:
    if text.unknown_tokens:
        print(
            f"penstock: warning: {text.unknown_tokens} of {text.tokens} tokens are unknown to the model's tokenizer: "
            "is the text written as the model was trained (case, punctuation)?",
            file=sys.stderr,
        )
    orders = [str(order) for order, each in enumerate(discounts, start=1) if each.is_fallback]
    if orders:
        print(
            f"penstock: warning: too little text for the discounts of order {', '.join(orders)}: 0.5, 1 and 1.5 taken",
            file=sys.stderr,
        )


def _print_perplexity(args: argparse.Namespace, tokenizer_path: Path, names) -> None:
    from penstock.fusion.ngram_file import load_ngram_lm
    from penstock.fusion.perplexity import measure_perplexity
    from penstock.fusion.token_names import TokenFormat
    from penstock.lm_training.text import TextTokenizer

    text = TextTokenizer(tokenizer_path)
    lm = load_ngram_lm(args.out, names, token_format=TokenFormat.PIECES)
    perplexity = measure_perplexity(lm, text.read([args.heldout]))
    if not perplexity.sentences:
        raise PenstockError(f"{args.heldout}: there is no text")
    print(
        f"perplexity {perplexity.per_token:.3f} per token over {perplexity.sentences} sentences, "
        f"{perplexity.tokens} tokens, {text.unknown_tokens} of them unknown"
    )
