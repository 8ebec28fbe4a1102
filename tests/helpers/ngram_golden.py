"""Golden n-gram models (tests/golden/ngram, made by tests/golden/make_ngram.py) and the labels they are over."""

import json
from pathlib import Path

from penstock.scoring.ngram.io import TokenNames, load_ngram_lm
from penstock.scoring.ngram.lm import NgramLm

DIRECTORY = Path(__file__).parents[1] / "golden" / "ngram"
GOLDEN = json.loads((DIRECTORY / "kenlm.json").read_text(encoding="utf-8"))
PRUNE: dict[str, list[int]] = GOLDEN["prune"]
SCORED = sorted(GOLDEN["scores"])
NAMES = TokenNames(("<unk>", *GOLDEN["pieces"], *GOLDEN["never_seen"], "<pad>"), 0, frozenset({17}))
LABELS = {piece: label for label, piece in enumerate(NAMES.pieces)}


def arpa_path(name: str) -> Path:
    return DIRECTORY / f"lmplz_{name}.arpa.gz"


def golden_lm(name: str) -> NgramLm:
    return load_ngram_lm(arpa_path(name), NAMES)


def golden_text() -> list[list[str]]:
    return [line.split() for line in (DIRECTORY / "text.txt").read_text(encoding="utf-8").splitlines()]


def to_labels(tokens: list[str]) -> list[int]:
    return [LABELS[token] for token in tokens]
