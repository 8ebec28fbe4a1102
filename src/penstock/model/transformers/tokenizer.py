"""Converts tokenizer.json to a SentencePiece model, the one format of tokenizers in a bundle.

Transformers' own conversion takes the other way: from SentencePiece to merges, which are ordered by the scores of the
pieces that they make. So a piece's score is minus the rank of its first merge. Decoding is equal for every model;
encoding is equal where the original was BPE.

Source of the wire format: sentencepiece_model.proto. It is written by hand, because the message module in the
`sentencepiece` wheel needs a newer protobuf than the Triton client allows.
"""

import base64
import binascii
import re
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from penstock.errors import CheckpointError, shown
from penstock.model.section import Section
from penstock.model.transformers.files import MAX_TOKENIZER_BYTES, TOKENIZER, read_json

_SPACE = "\u2581"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_CONTROL = ("<pad>", "<s>", "</s>")
_BPE = 2
_EXTRA_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": _SPACE}
_TRAILING_SPACES = {"type": "Strip", "strip_left": False, "strip_right": True}
_NO_TEXT = re.compile("[\ud800-\udfff\0]")
_VARINT, _LENGTH, _FLOAT = 0, 2, 5  # wire types of protobuf


class _Kind(IntEnum):
    """SentencePiece.Type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


class _Normalizer(NamedTuple):
    """charsmap: SentencePiece's compiled normalization, empty for none."""

    charsmap: bytes
    removes_extra_spaces: bool


def convert_tokenizer(directory: Path, vocabulary_size: int) -> bytes:
    """Returns the SentencePiece model for the first `vocabulary_size` ids of tokenizer.json in `directory`.

    Later ids (`<pad>`, `<blank>`) are not labels of the model. Raises CheckpointError for other tokenizers than BPE
    with Metaspace and for missing or repeated ids.
    """
    document = read_json(directory / TOKENIZER, MAX_TOKENIZER_BYTES)
    try:
        data = _convert(Section("", document), vocabulary_size)
        sentencepiece.SentencePieceProcessor(model_proto=data)
    except CheckpointError as error:
        raise CheckpointError(f"{TOKENIZER}: {error.message}") from error
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"{TOKENIZER}: makes no SentencePiece model: {error}") from error
    return data


def _convert(root: Section, vocabulary_size: int) -> bytes:
    normalizer = _normalizer(root)
    for key in ("pre_tokenizer", "decoder"):
        part = root.section(key)
        part.only("type", None, ("Metaspace",))
        part.only("replacement", None, (_SPACE,))
        part.only("prepend_scheme", None, ("always",))
    model = root.section("model")
    _check_model(model)
    pieces = _pieces(model, vocabulary_size)
    unknown = model.get("unk_token")
    if unknown not in pieces:
        model.reject("unk_token", unknown, "a piece of the vocabulary")
    has_bytes = model.get("byte_fallback") is True and set(_BYTES) <= set(pieces)
    kinds = _kinds(root, pieces, unknown, has_bytes)
    scores = _scores(model, pieces)
    lines = [
        _text(1, piece) + _tag(2, _FLOAT) + struct.pack("<f", score) + _number(3, kind)
        for piece, kind, score in zip(pieces, kinds, scores, strict=True)
    ]
    trainer = _number(3, _BPE) + _number(4, len(pieces)) + _number(35, has_bytes) + _text(45, unknown)
    spaces = _number(3, True) + _number(4, normalizer.removes_extra_spaces) + _number(5, True)
    return (
        b"".join(_bytes(1, line) for line in lines)
        + _bytes(2, trainer)
        + _bytes(3, _text(1, "imported") + _bytes(2, normalizer.charsmap) + spaces)
    )


def _check_model(model: Section) -> None:
    model.only("type", None, ("BPE",))
    model.only("dropout", None, (None,))
    model.only("continuing_subword_prefix", None, (None, ""))
    model.only("end_of_word_suffix", None, (None, ""))
    model.only("ignore_merges", False, (False,))
    model.only("fuse_unk", True, (True,))


def _normalizer(root: Section) -> _Normalizer:
    """Accepts what SentencePiece can do: its compiled map, then one space for several and none at the end."""
    given = root.get("normalizer")
    steps = given.get("normalizers") if isinstance(given, dict) and given.get("type") == "Sequence" else [given]
    accepted = "Precompiled, Strip at the right and Replace of several spaces, in this order"
    if given is None:
        steps = []
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        root.reject("normalizer", given, accepted)
    charsmap = b""
    if steps and steps[0].get("type") == "Precompiled":
        charsmap = _charsmap(steps[0])
        steps = steps[1:]
    if steps not in ([], [_TRAILING_SPACES, _EXTRA_SPACES]):
        root.reject("normalizer", steps, accepted)
    return _Normalizer(charsmap, bool(steps))


def _charsmap(step: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(step["precompiled_charsmap"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CheckpointError("normalizer.precompiled_charsmap: is not base64") from error


def _pieces(model: Section, vocabulary_size: int) -> list[str]:
    """The pieces in the order of their ids."""
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(type(index) is int for index in vocabulary.values()):
        model.reject("vocab", vocabulary, "an object with a whole number for each piece")
    if len(vocabulary) != vocabulary_size:
        raise CheckpointError(f"model.vocab: has {len(vocabulary)} pieces, expected {vocabulary_size}")
    by_id = {index: piece for piece, index in vocabulary.items()}
    missing = next((index for index in range(vocabulary_size) if index not in by_id), None)
    if missing is not None:
        raise CheckpointError(
            f"model.vocab: no piece has id {missing}; accepted: every id below {vocabulary_size} once"
        )
    pieces = [by_id[index] for index in range(vocabulary_size)]
    for index, piece in enumerate(pieces):
        if not piece or _NO_TEXT.search(piece):
            raise CheckpointError(f"model.vocab: the piece with id {index} is {piece!r}; accepted: text")
    return pieces


def _kinds(root: Section, pieces: list[str], unknown: str, has_bytes: bool) -> list[_Kind]:
    added = root.get("added_tokens", [])
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        root.reject("added_tokens", added, "a list of objects")
    kinds = dict.fromkeys(pieces, _Kind.NORMAL)
    for token in added:
        index, text = token.get("id"), token.get("content")
        if type(index) is not int or not isinstance(text, str):
            root.reject("added_tokens", token, "objects with id and content")
        if index >= len(pieces):
            continue
        if index < 0 or pieces[index] != text:
            raise CheckpointError(f"added_tokens: {text!r} has id {index}, which is another piece in model.vocab")
        kinds[text] = _Kind.CONTROL if text in _CONTROL else _Kind.USER_DEFINED
    kinds[unknown] = _Kind.UNKNOWN
    if has_bytes:
        kinds |= dict.fromkeys(_BYTES, _Kind.BYTE)
    return [kinds[piece] for piece in pieces]


def _scores(model: Section, pieces: list[str]) -> list[float]:
    """Minus the rank of the first merge that makes a piece; pieces that none makes are below, in the order of ids."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        model.reject("merges", merges, "a list of pairs of pieces")
    known, ranks = set(pieces), dict[str, int]()
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise CheckpointError(f"model.merges: {shown(merge)} is not supported; supported: pairs of pieces")
        made = "".join(pair)
        if not {*pair, made} <= known:
            raise CheckpointError(f"model.merges: {shown(merge)} has or makes a piece that is not in model.vocab")
        ranks.setdefault(made, rank)
    return [-float(ranks.get(piece, len(merges) + index)) for index, piece in enumerate(pieces)]


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _tag(field, _LENGTH) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
