"""The transcript of a stream, accumulated from its results; and its parts as JSON.

`penstock-client --json` and `penstock transcribe` write these alike. The words and alternatives of client and core are
classes of their own with the same attributes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock_common.results import Alternative, Result, Word, with_speakers
from penstock_common.writing import join_texts


@dataclass
class Segment:
    """A part of a stream, such as an utterance, whose text becomes final at its end."""

    text: str = ""
    """The text so far."""
    words: list[Word] = field(default_factory=list)
    """Completed words; times count from the stream's start."""
    tokens: int = 0
    """Number of its tokens."""
    alternatives: tuple[Alternative, ...] = ()
    """The alternatives of the final result, best first; see `StreamOptions.n_best`."""
    language: str = ""
    """The last language that the model named; "" for a model without a choice of languages."""
    is_final: bool = False
    """True once the text no longer changes."""


@dataclass
class Transcript:
    """Accumulates the results of one stream; `latency_s` and `is_complete` are set by the stream."""

    segments: list[Segment] = field(default_factory=list)
    """The segments in order; all but the last are final."""
    tokens: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """The encoder frame of each token, counted from its segment's start."""
    audio_processed_s: float = 0.0
    is_complete: bool = False
    """True once the stream's last request is answered."""
    latency_s: float | None = None
    """Time from sending the last request to the final text; None until then."""
    _newest: int | None = None

    @property
    def text(self) -> str:
        """The texts of all segments so far, joined by blanks, or without in scripts that have none."""
        return join_texts(segment.text for segment in self.segments)

    @property
    def words(self) -> list[Word]:
        """The completed words of all segments."""
        return [word for segment in self.segments for word in segment.words]

    @property
    def language(self) -> str:
        """The last language that the model named, as "en-US"; "" for a model without a choice of languages."""
        return next((segment.language for segment in reversed(self.segments) if segment.language), "")

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The alternatives of the last final segment, best first; see `StreamOptions.n_best`."""
        return next((segment.alternatives for segment in reversed(self.segments) if segment.is_final), ())

    def add(self, result: Result) -> None:
        """Adds the stream's next result."""
        if result.segment != self._newest:
            self._newest = result.segment
            self.segments.append(Segment())
        segment = self.segments[-1]
        segment.text, segment.language = result.text, result.language
        segment.words += result.new_words
        if result.word_speakers:
            segment.words = with_speakers(segment.words, result.word_speakers)
        segment.tokens += len(result.new_tokens)
        segment.is_final = result.is_final
        segment.alternatives = result.alternatives
        self.tokens += result.new_tokens
        self.timestamps += result.new_timestamps
        self.audio_processed_s = result.audio_processed_s


_DIGITS = 4
"""Decimals of confidences and scores, which arrive as float32."""


def word_document(word: Any) -> dict[str, Any]:
    """A word; times in ms from the start of the audio. With a speaker where that is known."""
    confidence = None if word.confidence is None else round(word.confidence, _DIGITS)
    who = getattr(word, "speaker", None)
    speaker = {} if who is None else {"speaker": who}
    return {"word": word.text, "start_ms": word.start_ms, "end_ms": word.end_ms, "confidence": confidence, **speaker}


def alternative_documents(alternatives: Iterable[Any]) -> list[dict[str, Any]]:
    """The alternatives of a segment, best first."""
    return [
        {"text": each.text, "score": round(each.score, _DIGITS), "words": list(map(word_document, each.words))}
        for each in alternatives
    ]


def segment_document(segment: Any, words: int) -> dict[str, Any]:
    """A segment; its words and tokens are numbers: they follow those of the segments before it."""
    counts = {"words": words, "tokens": segment.tokens}
    alternatives = alternative_documents(segment.alternatives)
    return {"text": segment.text, "language": segment.language, **counts, "alternatives": alternatives}
