"""`penstock graph`: builds a decoding graph from a language model of words, and describes one."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.commands import note
from penstock.commands.lm import add_model, open_checkpoint
from penstock.errors import GraphError, LanguageModelError, naming

if TYPE_CHECKING:
    from penstock.scoring.wfst.building.lexicon import Entries


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command and its two actions."""
    parser = subparsers.add_parser(
        "graph",
        description="Decoding graphs of words over CTC labels, for the decoder wfst.",
    )
    parts = parser.add_subparsers(required=True, metavar="ACTION")
    _add_build(parts)
    info = parts.add_parser("info", help="describe a decoding graph")
    info.add_argument("graph", type=Path, metavar="GRAPH", help="a file that `penstock graph build` wrote")
    info.set_defaults(run=run_info)


def _add_build(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser(
        "build",
        help="build a decoding graph from a language model of words",
        description="Compiles a language model of words and their spellings into one graph over CTC labels.",
    )
    add_model(parser)
    parser.add_argument("--lm", required=True, type=Path, metavar="ARPA", help="ARPA file of words")
    words = parser.add_mutually_exclusive_group()
    words.add_argument("--words", type=Path, metavar="FILE", help="one word a line: only these, not all of the model")
    words.add_argument(
        "--lexicon", type=Path, metavar="FILE", help="WORD [PIECE ...] a line: only these words, with their spellings"
    )
    parser.add_argument("--topology", choices=("normal", "compact"), default="normal", help="of CTC (normal)")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="output file; its name ends in .safetensors"
    )
    parser.add_argument("--openfst", type=Path, metavar="FILE", help="also write OpenFst's format, for other decoders")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.set_defaults(run=run_build)


def run_build(args: argparse.Namespace) -> int:
    """Prints the size of every part and the time."""
    from penstock.model.bundle_files import sha256_of
    from penstock.model.tokenizer import Tokenizer
    from penstock.reporting import check_writable
    from penstock.scoring.ngram.arpa import read_arpa
    from penstock.scoring.wfst.building.compile import compile_graph
    from penstock.scoring.wfst.building.fst_arrays import write_openfst
    from penstock.scoring.wfst.building.lexicon import build_lexicon, lm_words
    from penstock.scoring.wfst.graph_file import check_name, write_graph

    started = time.monotonic()
    check_name(args.out)
    for flag, path in (("--out", args.out), ("--openfst", args.openfst)):
        if path:
            check_writable(path, args.force, flag)
    tokenizer_path = open_checkpoint(args.model).tokenizer_path
    tokenizer = Tokenizer(tokenizer_path)
    arpa, word_list = read_arpa(args.lm), args.words or args.lexicon
    with naming(args.lm, GraphError, LanguageModelError):
        known = lm_words(arpa.words, tokenizer)
    entries = _entries(args, known)
    with naming(word_list or args.lm, GraphError, LanguageModelError):
        lexicon = build_lexicon(entries, known, tokenizer)
    with naming(args.lm, GraphError, LanguageModelError):
        digest = sha256_of(tokenizer_path)
        compiled = compile_graph(arpa, lexicon, args.topology, tokenizer.size, digest, print)
    if len(entries) < len(known):
        missing = f"{len(known) - len(entries)} of {len(known)} words of {args.lm} are not in {word_list}"
        note(f"warning: {missing}: the graph cannot recognize them")
    write_graph(compiled.graph, args.out)
    if args.openfst:
        write_openfst(compiled.fst, args.openfst)
    print(f"{args.out}: written after {time.monotonic() - started:.1f} s")
    return 0


def run_info(args: argparse.Namespace) -> int:
    """Prints what a graph is for and its sizes."""
    from penstock.scoring.wfst.graph_file import read_graph

    graph = read_graph(args.graph)
    print(f"{args.graph}: {graph.topology} CTC topology")
    print(f"words: {len(graph.words) - 1:,}, spellings: {len(graph.spelling_offsets) - 1:,}")
    print(f"model: {graph.vocabulary_size} tokens, tokenizer SHA-256 {graph.tokenizer_sha256}")
    print(f"size: {graph.describe_size()}")
    return 0


def _entries(args: argparse.Namespace, known: list[str]) -> "Entries":
    from penstock.scoring.wfst.building.lexicon import read_entries

    path = args.words or args.lexicon
    return read_entries(path, with_pieces=args.lexicon is not None) if path else {word: [()] for word in known}
