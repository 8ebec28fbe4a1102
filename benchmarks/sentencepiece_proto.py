"""Reads the protobuf of a SentencePiece model without its message module, which needs a newer protobuf."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # SentencePiece.Type


class Piece(NamedTuple):
    """One piece, its score and its SentencePiece.Type."""

    text: str
    score: float
    kind: int


class SentencePieceProto(NamedTuple):
    """The parts of a model that tokenizer.json repeats."""

    pieces: tuple[Piece, ...]
    charsmap: bytes


def parse(data: bytes) -> SentencePieceProto:
    """Parses what sentencepiece_model.proto calls ModelProto."""
    pieces, charsmap = [], b""
    for field, value in _fields(data):
        if field == 1:
            parts = dict(_fields(value))
            score = struct.unpack("<f", parts[2])[0] if 2 in parts else 0.0
            pieces.append(Piece(parts[1].decode(), score, parts.get(3, 1)))
        if field == 3:
            charsmap = dict(_fields(value)).get(2, b"")
    return SentencePieceProto(tuple(pieces), charsmap)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if tag & 7 == 2 else (4, at)
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def with_texts(data: bytes, texts: dict[str, str]) -> bytes:
    """The model with other texts for some pieces: same ids, scores and kinds."""
    written = b""
    for field, value in _fields(data):
        if field == 1:
            parts = dict(_fields(value))
            name = parts[1].decode()
            value = _bytes_field(1, texts.get(name, name).encode())
            value += b"\x15" + parts[2] if 2 in parts else b""
            value += bytes([3 << 3, parts.get(3, 1)])
        written += _bytes_field(field, value)
    return written


def _bytes_field(number: int, value: bytes) -> bytes:
    size, length = b"", len(value)
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + value
