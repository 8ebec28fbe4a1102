"""The command line's arguments that become a `StreamOptions`. Knows no network."""

import argparse
import re
from pathlib import Path
from typing import get_args

from penstock_client.options import BoostedPhrase, Decoder, StreamOptions

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


def add_option_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments, as a group of their own."""
    add = parser.add_argument_group("options of the stream (what is left out is the server's choice)").add_argument
    add("--decoder", choices=get_args(Decoder), default="greedy", help="greedy, or a beam search (greedy)")
    add("--beam-size", type=int, metavar="K", help="hypotheses that alsd and aes keep")
    add(
        "--n-best",
        "--max-alternatives",
        type=int,
        default=0,
        metavar="N",
        help="print N alternatives too; with alsd and aes (0)",
    )
    add("--lm-weight", type=float, metavar="W", help="weight of the server's language model")
    add(
        "--boost-phrase",
        "--boosted-words",
        action="append",
        default=[],
        metavar="TEXT[:BOOST]",
        help="hear this phrase more often; may be given again",
    )
    add("--boosted-phrases", metavar="FILE", help="a file of such phrases, one a line")
    add("--boost", type=float, metavar="B", help="boost of phrases without their own, below 0 for less often")


def read_options(args: argparse.Namespace) -> StreamOptions:
    """The options that the arguments ask for. ValueError for bad ones, an unreadable file of phrases among them."""
    phrases = [_phrase("--boost-phrase", text) for text in args.boost_phrase]
    if args.boosted_phrases is not None:
        phrases += _read_phrases(args.boosted_phrases)
    elif args.boost is not None and not phrases:
        raise ValueError("--boost goes with --boost-phrase or --boosted-phrases")
    return StreamOptions(
        decoder=args.decoder,
        beam_size=args.beam_size,
        n_best=args.n_best,
        lm_weight=args.lm_weight,
        boosted_phrases=phrases,
        boost=args.boost,
    )


def _read_phrases(path: str) -> list[BoostedPhrase]:
    """The phrases in a text file; empty lines are left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a text file in UTF-8") from error
    return [_phrase(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1) if line.strip()]


def _phrase(place: str, argument: str) -> BoostedPhrase:
    """TEXT or TEXT:BOOST; what follows the last colon is always the boost, so that a mistyped one is not heard for."""
    text, colon, boost = argument.rpartition(":")
    if not (text if colon else boost).strip():
        raise ValueError(f"{place}: {argument!r} holds no words, expected TEXT or TEXT:BOOST")
    if not colon:
        return argument.strip()
    if not _NUMBER.fullmatch(boost.strip()):
        raise ValueError(f"{place}: {boost!r} in {argument!r} is not a number, expected TEXT or TEXT:BOOST")
    return text.strip(), float(boost)
