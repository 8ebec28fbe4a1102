"""Reads the labels of a model from `tokenizer.model`: the one place that knows its forms.

A SentencePiece model as it is, or JSON of one of two forms: {"languages": {"en": MODEL, ...}}, SentencePiece models in
base64 whose labels follow each other; {"characters": [" ", "a", ...]}, labels that no tokenizer makes.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import sentencepiece

from penstock.errors import CheckpointError

SPACE = "\u2581"
"""A space inside a piece, as SentencePiece writes it."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_JSON_START = b"{"  # no SentencePiece model begins so
_LANGUAGES, _CHARACTERS = "languages", "characters"
Encoder = Callable[[str], list[int]]


class Vocabulary(NamedTuple):
    """V labels, and how text becomes labels."""

    names: tuple[str, ...]
    """The pieces, spaces as U+2581; of several languages with their language, as `en:\u2581six`."""
    texts: tuple[str | bytes, ...]
    """Text of each label (spaces as spaces), one byte of UTF-8, or "" (control pieces)."""
    unknown: int
    """The label that encoders give for characters without one; -1, which is no label, where the model has none."""
    controls: frozenset[int]
    encoders: tuple[Encoder, ...]
    """One per language, the first one's labels first."""
    separator: int | None = None
    """Label of the space between words, in a character model."""
    languages: tuple[str, ...] = ()
    """Languages of several SentencePiece models."""


def read_vocabulary(data: bytes) -> Vocabulary:
    """Reads the content of a `tokenizer.model`; CheckpointError says what is wrong."""
    if not is_json(data):
        return read_pieces(data)
    try:
        document = json.loads(data)
        if _CHARACTERS in document:
            return _of_characters(document[_CHARACTERS])
        models = {language: base64.b64decode(model) for language, model in document[_LANGUAGES].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"not a list of characters, nor SentencePiece models by language: {error!r}") from error
    return _of_languages(models)


def is_json(data: bytes) -> bool:
    """True for the forms that bundles of version 4 have."""
    return data.startswith(_JSON_START)


def write_characters(labels: Sequence[str]) -> bytes:
    """The file of a character model."""
    return json.dumps({_CHARACTERS: list(labels)}, ensure_ascii=False).encode()


def write_models(models: Mapping[str, bytes]) -> bytes:
    """The file of several SentencePiece models, in the order of their labels."""
    return json.dumps({_LANGUAGES: {name: base64.b64encode(model).decode() for name, model in models.items()}}).encode()


def read_pieces(data: bytes) -> Vocabulary:
    """The labels of one SentencePiece model; CheckpointError if it is none."""
    if not data:
        raise CheckpointError("not a SentencePiece model: is empty")
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=data)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"not a SentencePiece model: {error}") from error
    size = model.get_piece_size()
    return Vocabulary(
        names=tuple(model.id_to_piece(label) for label in range(size)),
        texts=tuple(_piece_text(model, label) for label in range(size)),
        unknown=model.unk_id(),
        controls=frozenset(label for label in range(size) if model.is_control(label)),
        encoders=(model.encode,),
    )


def _piece_text(model: sentencepiece.SentencePieceProcessor, label: int) -> str | bytes:
    if model.is_control(label):
        return ""
    if model.is_unknown(label):
        return model.decode([label])
    text = model.id_to_piece(label)
    if model.is_byte(label) and (byte := _BYTE_PIECE.fullmatch(text)):
        return bytes.fromhex(byte.group(1))
    return text.replace(SPACE, " ")


def _of_languages(models: Mapping[str, bytes]) -> Vocabulary:
    """Labels one language after the other, so that no two have the same."""
    names: list[str] = []
    texts: list[str | bytes] = []
    controls: set[int] = set()
    encoders, unknown = [], -1
    for language, model in models.items():
        part, offset = read_pieces(model), len(names)
        unknown = part.unknown if offset == 0 else unknown
        names += [f"{language}:{name}" for name in part.names]
        texts += part.texts
        controls |= {offset + label for label in part.controls}
        encoders.append(partial(_encode_after, part, offset, unknown))
    return Vocabulary(tuple(names), tuple(texts), unknown, frozenset(controls), tuple(encoders), None, tuple(models))


def _encode_after(part: Vocabulary, offset: int, unknown: int, text: str) -> list[int]:
    return [unknown if label == part.unknown else offset + label for label in part.encoders[0](text)]


def _of_characters(labels: Sequence[str]) -> Vocabulary:
    if not labels or not all(isinstance(label, str) and label for label in labels):
        raise ValueError("a label is no text")
    known = {label: number for number, label in reversed([*enumerate(labels)])}
    return Vocabulary(
        names=tuple(label.replace(" ", SPACE) for label in labels),
        texts=tuple(labels),
        unknown=-1,
        controls=frozenset(),
        encoders=(lambda text: [known.get(each, -1) for each in " ".join(text.split())],),
        separator=known.get(" "),
    )
