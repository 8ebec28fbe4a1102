"""Results of a stream: texts, words, alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T", bound="Result")


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
    """Time from sending the request to this reply; set by the client."""
    stable_chars: int = 0
    """Leading characters of `text` that later results of the segment keep; 0 where the server does not send it."""
    is_endpoint: bool = False
    """True for the final result of a segment that an endpoint has ended, not a request; set by the client."""
    word_speakers: tuple[int | None, ...] = ()
    """In a final result of a stream with speakers: the speaker of each word of its segment, told before or now."""

    def shifted(self: T, start_ms: int) -> T:
        """A copy whose words are later."""
        alternatives = (replace(each, words=later(each.words, start_ms)) for each in self.alternatives)
        return replace(self, new_words=later(self.new_words, start_ms), alternatives=tuple(alternatives))


def with_speakers(words: Sequence[Word], speakers: Sequence[int | None]) -> list[Word]:
    """The words of a segment with their speakers: those of its final result."""
    return [replace(word, speaker=speaker) for word, speaker in zip(words, speakers, strict=True)]


def later(words: Sequence[Word], shift_ms: int) -> tuple[Word, ...]:
    """The words with this time added to theirs."""
    return tuple(replace(each, start_ms=each.start_ms + shift_ms, end_ms=each.end_ms + shift_ms) for each in words)
