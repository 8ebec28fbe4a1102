"""What travels between a client and the Triton model `asr`: pieces of audio there, results back.

Knows no network and no threads. The transports turn a `Piece` into their own request and hand the outputs of the
reply to `parse_reply`.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_client.errors import (
    ProtocolError,
    ServerFullError,
    StreamClosedError,
    StreamError,
    StreamId,
    StreamNotOpenError,
)

MODEL_NAME = "asr"
INPUT_NAME = "AUDIO"
INPUT_DATATYPE = "FP32"
SAMPLE_RATE_HZ = 16_000
MAX_PIECE_SAMPLES = 30 * SAMPLE_RATE_HZ
"""The most audio that the server takes in one request."""

OUTPUTS_WITHIN_SEGMENT = (
    "SEGMENT", "TEXT", "IS_FINAL", "AUDIO_PROCESSED", "WORDS", "WORD_START_MS", "WORD_END_MS", "WORD_CONFIDENCE",
    "TOKENS", "TIMESTAMPS",
)  # fmt: skip
"""What is asked for over gRPC with a piece that ends no segment: alternatives come with a segment's end only, and each
output costs the server its share of a request."""

_MAX_STRING_ID_BYTES = 128  # Triton's limits of a correlation id
_MAX_NUMERIC_ID = 2**63 - 1
_BYTES_PER_SAMPLE = 4

Parameter = str | int | float | bool
"""The kinds of Triton request parameters."""

_FINALIZE: Mapping[str, Parameter] = {"finalize": True}
"""Goes with the last piece of a segment, where the user ends it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The audio of one request."""

    audio: bytes
    """Samples as little-endian float32, maybe none."""
    is_first: bool
    is_last: bool
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """The stream's options, with the first piece only; `finalize` with the last piece of a segment."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.audio) // _BYTES_PER_SAMPLE

    @property
    def ends_segment(self) -> bool:
        """Whether the reply is a segment's final result."""
        return self.is_last or _FINALIZE.keys() <= self.parameters.keys()


END_PIECE = Piece(audio=b"", is_first=False, is_last=True)
"""Ends a stream whose user has gone before its end."""


@dataclass(frozen=True, slots=True)
class Word:
    """One completed word, with its place in the stream's audio."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float | None = None
    """How sure the network is of the word, 0 .. 1; None where the server does not say."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One hypothesis of a beam search for the whole text."""

    text: str
    score: float
    """Natural logarithm; comparable within one result only."""
    words: tuple[Word, ...] = ()
    """All words of the segment in this hypothesis; none where the server does not say."""


@dataclass(frozen=True, slots=True)
class Result:
    """The server's reply to one piece of audio."""

    segment: int
    """Which part of the stream `text` is of; counts up."""
    text: str
    """Text of that segment so far, a word that is not completed yet included."""
    is_final: bool
    """True once this segment's text no longer changes."""
    audio_processed_s: float
    new_words: tuple[Word, ...]
    """Words completed since the stream's previous result."""
    new_tokens: tuple[int, ...]
    """Token ids found since the stream's previous result."""
    new_timestamps: tuple[int, ...]
    """For each new token its encoder frame, counted from its segment's start."""
    alternatives: tuple[Alternative, ...] = ()
    """Best first, as many as the stream's option `n_best` asked for; only in the final result."""
    round_trip_s: float = 0.0
    """From the piece being sent to this reply; set by the transport."""

    def after(self, round_trip_s: float) -> "Result":
        """The same with its round trip: `dataclasses.replace`, which takes three times as long."""
        return Result(
            self.segment,
            self.text,
            self.is_final,
            self.audio_processed_s,
            self.new_words,
            self.new_tokens,
            self.new_timestamps,
            self.alternatives,
            round_trip_s,
        )


class PieceCutter:
    """Cuts one stream's audio into pieces that a request can hold, and marks the first and the last.

    `parameters` go with the stream's first piece only.
    """

    def __init__(
        self,
        stream_id: StreamId,
        max_piece_samples: int = MAX_PIECE_SAMPLES,
        parameters: Mapping[str, Parameter] | None = None,
    ):
        self._stream_id = stream_id
        self._max_piece_samples = max_piece_samples
        self._parameters = parameters or {}
        self._is_started = False
        self._is_ended = False

    def cut(self, samples: npt.ArrayLike, is_last: bool = False, ends_segment: bool = False) -> list[Piece]:
        """The pieces of `samples` [n] in order: at least one, even where n is 0.

        With `ends_segment` the last of them asks the server to end the current segment. Raises StreamClosedError
        after the stream's last piece and ValueError for an unsuitable array.
        """
        if self._is_ended:
            raise StreamClosedError(self._stream_id, "the stream is finished and takes no more audio")
        array = as_samples(samples)
        starts = range(0, max(1, array.size), self._max_piece_samples)
        pieces = [
            Piece(
                audio=array[start : start + self._max_piece_samples].tobytes(),
                is_first=start == 0 and not self._is_started,
                is_last=start == starts[-1] and is_last,
                parameters={
                    **({} if start or self._is_started else self._parameters),
                    **(_FINALIZE if start == starts[-1] and ends_segment else {}),
                },
            )
            for start in starts
        ]
        self._is_started, self._is_ended = True, is_last
        return pieces


def as_samples(samples: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Mono audio [n] as float32: floats are taken as they are (-1 .. 1), int16 as PCM.

    Raises ValueError for another shape or type.
    """
    array = np.asarray(samples)
    if array.ndim != 1:
        raise ValueError(f"samples have shape {array.shape}, expected mono audio of shape [n]")
    if array.dtype == np.int16:
        return array.astype("<f4") / np.float32(32768)
    if array.size and array.dtype.kind != "f":
        raise ValueError(f"samples have type {array.dtype}, expected floats in -1 .. 1 or int16")
    return array.astype("<f4", copy=False)


def check_stream_id(stream_id: StreamId) -> StreamId:
    """The id, if the server can take it; ValueError says what it takes."""
    if isinstance(stream_id, str):
        is_usable = 0 < len(stream_id.encode()) <= _MAX_STRING_ID_BYTES
    else:
        is_usable = type(stream_id) is int and 0 < stream_id <= _MAX_NUMERIC_ID
    if not is_usable:
        raise ValueError(
            f"stream id is {stream_id!r}, expected a string of 1 to {_MAX_STRING_ID_BYTES} bytes "
            f"or an integer from 1 to {_MAX_NUMERIC_ID}"
        )
    return stream_id


def parse_reply(stream_id: StreamId, as_numpy: Callable[[str], npt.NDArray[Any] | None]) -> Result:
    """`parse_values` of outputs that are arrays, [1, k] each."""

    def values(name: str) -> list[Any] | None:
        output = as_numpy(name)
        return None if output is None else output.ravel().tolist()

    return parse_values(stream_id, values)


def parse_values(stream_id: StreamId, values: Callable[[str], list[Any] | None]) -> Result:
    """The result that a reply's outputs hold; `values` looks one up by name: Python values, None where it is missing.

    Confidences and alternatives may be missing: not every Penstock server sends them. Raises ProtocolError for anything
    that none does.
    """
    try:
        return _parse(partial(_row, values))
    except (ValueError, TypeError, LookupError, AttributeError, struct.error) as error:
        raise ProtocolError(stream_id, f"the server's reply cannot be read: {error}") from error


def _parse(row: Callable[..., list[Any]]) -> Result:
    (segment,), (text,), (is_final,) = row("SEGMENT"), row("TEXT"), row("IS_FINAL")
    (audio_processed_s,) = row("AUDIO_PROCESSED")
    words = row("WORDS")
    confidences = row("WORD_CONFIDENCE", [None] * len(words))
    word_rows = zip(words, row("WORD_START_MS"), row("WORD_END_MS"), confidences, strict=True)
    alternative_texts = row("ALTERNATIVES", [])
    alternative_words = row("ALTERNATIVE_WORDS", [b"[]"] * len(alternative_texts))
    alternatives = zip(alternative_texts, row("ALTERNATIVE_SCORES", []), alternative_words, strict=True)
    tokens, timestamps = tuple(row("TOKENS")), tuple(row("TIMESTAMPS"))
    if len(tokens) != len(timestamps):
        raise ValueError(f"{len(tokens)} TOKENS but {len(timestamps)} TIMESTAMPS")
    return Result(
        segment=segment,
        text=text.decode(),
        is_final=is_final,
        audio_processed_s=audio_processed_s,
        new_words=tuple(Word(word.decode(), *rest) for word, *rest in word_rows),
        new_tokens=tokens,
        new_timestamps=timestamps,
        alternatives=tuple(
            Alternative(text.decode(), score, tuple(Word(*word) for word in json.loads(words)))
            for text, score, words in alternatives
        ),
    )


def _row(values: Callable[[str], list[Any] | None], name: str, default: list[Any] | None = None) -> list[Any]:
    """The values of an output; one without a default must be there."""
    if (found := values(name)) is not None:
        return found
    if default is None:
        raise KeyError(f"output {name} is missing")
    return default


# The streaming RPC carries a message but no status, so the message has to tell.
_REFUSALS: tuple[tuple[type[StreamError], tuple[str, ...]], ...] = (
    (ServerFullError, ("UNAVAILABLE", "slots are taken", "while other streams hold theirs")),
    (StreamNotOpenError, ("NOT_FOUND", "is not open", "START flag")),
)


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
"""What a message quotes, an id or a phrase, is the user's and says nothing of the kind of refusal."""


def refusal(stream_id: StreamId, message: str, model: str = MODEL_NAME) -> StreamError:
    """The exception for an error message that the server sent instead of a result."""
    message = message.removeprefix(f"in ensemble '{model}', ")
    own_words = _QUOTED.sub("", message)
    for kind, signs in _REFUSALS:
        if any(sign in own_words for sign in signs):
            return kind(stream_id, message)
    return StreamError(stream_id, message)
