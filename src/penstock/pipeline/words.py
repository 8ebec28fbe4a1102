"""Words with times from tokens that arrive chunk by chunk."""

import copy
import re
from typing import NamedTuple

from penstock.decoding.confidence import word_confidence
from penstock.model.tokenizer import IncrementalText, Tokenizer

_SPACE = re.compile(r"\s")


class Token(NamedTuple):
    """One label."""

    id: int
    timestamp: int
    """Encoder frame, counted from the segment's start."""
    duration: int
    """Encoder frames; 0 for RNN-T."""
    score: float
    """Log-probability."""
    text: str | None = None
    """What it adds to the text, where a lexicon says so; None: its piece."""


class Word(NamedTuple):
    """One complete word."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float = 1.0
    """0 .. 1, from `penstock.decoding.confidence.word_confidence`."""


class Transcript:
    """Transcript of one segment. A word is complete when the next one begins or the segment ends."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder_frame_ms: float,
        start_ms: float = 0.0,
        dropped: frozenset[int] = frozenset(),
    ):
        """start_ms: where the segment begins in its stream; word times count from the stream's start.

        dropped: tokens that are neither in the text nor in a word.
        """
        self._frame_ms = encoder_frame_ms
        self._start_ms = start_ms
        self._text = IncrementalText(tokenizer, dropped)
        self._word = ""
        self._start_frame = self._end_frame = 0
        self._scores: list[float] = []
        self.words: list[Word] = []
        """All complete words so far."""

    @property
    def text(self) -> str:
        """All text so far, with the incomplete word, without trailing spaces."""
        return self._text.text.rstrip(" ")

    def text_with(self, tokens: list[Token]) -> str:
        """Returns the text as if `tokens` followed; the transcript does not change."""
        return self._continued(tokens).text.rstrip(" ") if tokens else self.text

    def ending_with(self, tokens: list[Token]) -> "Transcript":
        """Returns the segment's transcript as if it ended with `tokens`. An incomplete character becomes U+FFFD."""
        other = copy.copy(self)
        other._text, other._scores, other.words = self._text.copy(), list(self._scores), list(self.words)
        other.add(tokens)
        other.finish()
        return other

    def add(self, tokens: list[Token]) -> list[Word]:
        """Appends tokens and returns the words that are complete now."""
        finished = []
        for token in tokens:
            if not self._word and not self._text.is_inside_character:
                self._start_frame = token.timestamp
            part, *others = _SPACE.split(self._text.add(token.id, token.text))
            self._extend(part, token)
            for part in others:
                finished += self._finish_word()
                self._start_frame = token.timestamp
                self._extend(part, token)
        return finished

    def finish(self) -> list[Word]:
        """Ends the text and returns the last word, if any."""
        self._word += self._text.finish()
        return self._finish_word()

    def _continued(self, tokens: list[Token]) -> IncrementalText:
        text = self._text.copy()
        for token in tokens:
            text.add(token.id, token.text)
        return text

    def _extend(self, part: str, token: Token) -> None:
        if part or token.text == "":
            self._word += part
            self._scores.append(token.score)
            self._end_frame = token.timestamp + max(token.duration, 1)

    def _finish_word(self) -> list[Word]:
        text, self._word = self._word, ""
        scores, self._scores = self._scores, []
        if not text:
            return []
        end_frame = max(self._end_frame, self._start_frame + 1)
        start_ms, end_ms = (round(self._start_ms + frame * self._frame_ms) for frame in (self._start_frame, end_frame))
        word = Word(text, start_ms, end_ms, word_confidence(scores) if scores else 0.0)
        self.words.append(word)
        return [word]
