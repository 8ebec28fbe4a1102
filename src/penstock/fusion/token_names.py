"""The words of a language model file and the labels of a recognizer: which word is which label.

Two ways of writing tokens are read. *Pieces*: the tokenizer's own, as `▁six`, which is what Penstock writes. *Offset*:
label i as the single character chr(i + 100), which is what NeMo's scripts write.
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from penstock.errors import CheckpointError, PenstockError
from penstock.fusion.arpa import BEGIN, END, UNKNOWN

NEMO_TOKEN_OFFSET = 100
_SPECIAL = (BEGIN, END, UNKNOWN)
_NAMED_IN_ERRORS = 5


class TokenFormat(Enum):
    """How a file writes tokens."""

    PIECES = "pieces"
    OFFSET = "offset"


class TokenNames(NamedTuple):
    """What a recognizer's labels are called, V of them."""

    pieces: tuple[str, ...]
    """The tokenizer's pieces, spaces as U+2581; label i is `pieces[i]`."""
    unknown_label: int
    """The tokenizer's piece for what it cannot write; -1 if it has none."""
    control_labels: frozenset[int] = frozenset()
    """Pieces that no text holds."""


def read_token_names(tokenizer_path: str | Path) -> TokenNames:
    """The names in a SentencePiece model; raises CheckpointError if the file is none."""
    model = load_sentencepiece(tokenizer_path)
    size = model.get_piece_size()
    return TokenNames(
        pieces=tuple(model.id_to_piece(label) for label in range(size)),
        unknown_label=next((label for label in range(size) if model.is_unknown(label)), -1),
        control_labels=frozenset(label for label in range(size) if model.is_control(label)),
    )


def load_sentencepiece(path: str | Path) -> sentencepiece.SentencePieceProcessor:
    """Opens a SentencePiece model; raises CheckpointError if the file is none."""
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(Path(path).read_bytes())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a SentencePiece model: {error}") from error
    return model


def find_labels(words: Sequence[str], names: TokenNames, token_format: TokenFormat | None = None) -> np.ndarray:
    """The label of each word, [W] int64; -1 for `<s>`, `</s>` and `<unk>`.

    Without a `token_format`, that in which every word is a label is taken, pieces first. Words that are no labels raise
    PenstockError naming some: the file was made for another vocabulary.
    """
    formats = [token_format] if token_format else list(TokenFormat)
    strangers: dict[TokenFormat, list[str]] = {}
    for candidate in formats:
        labels, strangers[candidate] = _match(words, names, candidate)
        if not strangers[candidate]:
            return labels
    nearest = min(formats, key=lambda candidate: len(strangers[candidate]))
    raise PenstockError(_refusal(words, names, nearest, strangers[nearest]))


def _match(words: Sequence[str], names: TokenNames, token_format: TokenFormat) -> tuple[np.ndarray, list[str]]:
    """Labels, and the words that have none."""
    if token_format is TokenFormat.PIECES:
        known = {piece: label for label, piece in enumerate(names.pieces)}
    else:
        known = {chr(label + NEMO_TOKEN_OFFSET): label for label in range(len(names.pieces))}
    known |= dict.fromkeys(_SPECIAL, -1)
    labels = [known.get(word) for word in words]
    strangers = [word for word, label in zip(words, labels, strict=True) if label is None]
    return np.array([-1 if label is None else label for label in labels], dtype=np.int64), strangers


def _refusal(words: Sequence[str], names: TokenNames, token_format: TokenFormat, strangers: list[str]) -> str:
    shown = ", ".join(map(repr, strangers[:_NAMED_IN_ERRORS]))
    if len(strangers) > _NAMED_IN_ERRORS:
        shown += f" and {len(strangers) - _NAMED_IN_ERRORS} more"
    return (
        f"another vocabulary: of {len(words)} words, {len(strangers)} are not among the model's "
        f"{len(names.pieces)} tokens, read as {token_format.value}: {shown}"
    )
