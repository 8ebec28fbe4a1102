"""Requests with audio and results of one stream, in any transport. No network, no threads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

MODEL_NAME = "asr"
SAMPLE_RATE_HZ = 16_000
MAX_REQUEST_SAMPLES = 30 * SAMPLE_RATE_HZ
"""The server's limit for one request."""
MAX_REPLY_BYTES = 32 << 20
"""A larger reply is not read. N-best texts are what is long: a word takes some 70 bytes, most of them its times and
confidence as JSON. So this holds 8 alternatives of a segment of 4 h (43,000 words, 24 MB), 32 of one of an hour, or 4
for each of the 1,024 rows of a batch that all end a segment of 30 s."""

BYTES_PER_SAMPLE = 4
_ROUNDING, _PADDING_S = 1e-5, 1.0
"""AUDIO_PROCESSED may differ from what was sent by the first as a part of it, and exceed it by less than the second."""

Parameter = str | int | float | bool
"""The kinds of Triton request parameters."""

FINALIZE: Mapping[str, Parameter] = {"finalize": True}
"""The parameter of a request that ends a segment while the stream continues."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a stream."""

    audio: bytes
    """Samples [n] as little-endian float32; n may be 0."""
    is_start: bool
    """True for the stream's first request."""
    is_end: bool
    """True for the stream's last request."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """The stream's options in the first request; `finalize`, and options that change, where a segment ends and the
    stream continues."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.audio) // BYTES_PER_SAMPLE

    @property
    def is_final(self) -> bool:
        """True where a segment ends, so that the reply is its final result."""
        return self.is_end or FINALIZE.keys() <= self.parameters.keys()

    @property
    def changes(self) -> Mapping[str, Parameter]:
        """The options that change with it, in a running stream."""
        return {} if self.is_start else {n: value for n, value in self.parameters.items() if n not in FINALIZE}


@dataclass(frozen=True, slots=True)
class Word:
    """One completed word; times count from the stream's start."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float | None = None
    """Confidence of the network in the word, 0 .. 1; None where the server does not send it."""
    speaker: int | None = None
    """From 1, in the order in which they first speak; None where that is not asked for, or not known."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One hypothesis of a beam search for a whole segment."""

    text: str
    score: float
    """Natural logarithm; comparable within one result only."""
    words: tuple[Word, ...] = ()
    """All words of the segment; empty where the server does not send them."""


@dataclass(frozen=True, slots=True)
class Result:
    """An answer of the server: the new part of one stream's text."""

    segment: int
    """Index of the segment that `text` belongs to."""
    text: str
    """Text of that segment so far, including a word that is not completed yet."""
    is_final: bool
    """True once this segment's text no longer changes."""
    audio_processed_s: float
    new_words: tuple[Word, ...]
    """Words completed since the stream's previous result."""
    new_tokens: tuple[int, ...]
    """Token ids emitted since the stream's previous result."""
    new_timestamps: tuple[int, ...]
    """The encoder frame of each new token, counted from its segment's start."""
    alternatives: tuple[Alternative, ...] = ()
    """Best first, at most the stream's `n_best`; in final results only."""
    language: str = ""
    """The last language that the model named in the segment, as "en-US"; "" before the first and without a choice."""
    round_trip_s: float = 0.0
    """Time from sending the request to this reply; set by the transport."""
    stable_chars: int = 0
    """Leading characters of `text` that later results of the segment keep; 0 where the server does not send it."""
    is_endpoint: bool = False
    """True for the final result of a segment that an endpoint has ended, not a request; set by the transport."""
    word_speakers: tuple[int | None, ...] = ()
    """In a final result of a stream with speakers: the speaker of each word of its segment, told before or now."""

    def after(self, round_trip_s: float, is_endpoint: bool = False) -> "Result":
        """A copy with what the transport sets. `dataclasses.replace` would take three times as long."""
        return Result(
            self.segment,
            self.text,
            self.is_final,
            self.audio_processed_s,
            self.new_words,
            self.new_tokens,
            self.new_timestamps,
            self.alternatives,
            self.language,
            round_trip_s,
            self.stable_chars,
            is_endpoint,
            self.word_speakers,
        )

    def shifted(self, start_ms: int) -> "Result":
        """A copy whose words are later."""
        alternatives = (replace(each, words=_shifted(each.words, start_ms)) for each in self.alternatives)
        return replace(self, new_words=_shifted(self.new_words, start_ms), alternatives=tuple(alternatives))


def with_speakers(words: Sequence[Word], speakers: Sequence[int | None]) -> list[Word]:
    """The words of a segment with their speakers: those of its final result."""
    return [replace(word, speaker=speaker) for word, speaker in zip(words, speakers, strict=True)]


def _shifted(words: Sequence[Word], start_ms: int) -> tuple[Word, ...]:
    return tuple(replace(each, start_ms=each.start_ms + start_ms, end_ms=each.end_ms + start_ms) for each in words)


def ends_stream(results: Sequence[Result], samples: int) -> bool:
    """True if these are the last results of a stream of `samples` samples, whose end was sent.

    A stream of an offline model has results that end its segments before: they report at most 0.999 of the audio. The
    last one reports all of it, as float32, and of a stream that has moved as a sum of two.
    """
    least_s = (1 - _ROUNDING) * samples / SAMPLE_RATE_HZ
    return bool(results) and results[-1].is_final and results[-1].audio_processed_s >= least_s


class ResultOrder:
    """Whether results of one stream on one server can be: segments follow one another, and cover audio that was sent.

    Else a segment could be taken for one that is told, and its words be lost.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        """The segment of the next result. A stream's first one may have any."""

    def problem(self, results: Sequence[Result], samples: int) -> str | None:
        """Checks the next results of a stream of which the server may have these samples; None: nothing is wrong."""
        for result in results:
            if self._next not in (None, result.segment):
                return f"the server's reply has segment {result.segment}, expected {self._next}"
            if result.audio_processed_s > samples / SAMPLE_RATE_HZ * (1 + _ROUNDING) + _PADDING_S:
                return f"the server's reply covers {result.audio_processed_s:g} s of {samples / SAMPLE_RATE_HZ:g}"
            self._next = result.segment + result.is_final
        return None


def as_samples(samples: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Mono audio [n] as float32: floats are unchanged (-1 .. 1), int16 is PCM.

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
