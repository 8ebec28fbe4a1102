"""The words of one segment of a stream, from tokens that arrive chunk by chunk. Knows nothing of tensors."""

import copy
import re
from typing import NamedTuple

from penstock.decoding.confidence import word_confidence
from penstock.tokenizer import IncrementalText, Tokenizer

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


class Word(NamedTuple):
    """One finished word."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float = 1.0
    """0 .. 1, see `penstock.decoding.confidence`."""


class Transcript:
    """Text so far, and words as they are finished: a word is, once the next one begins or the segment ends."""

    def __init__(self, tokenizer: Tokenizer, encoder_frame_ms: float, start_ms: float = 0.0):
        """start_ms: of the segment in its stream; words' times count from the stream's start."""
        self._frame_ms = encoder_frame_ms
        self._start_ms = start_ms
        self._text = IncrementalText(tokenizer)
        self._word = ""
        self._start_frame = self._end_frame = 0
        self._scores: list[float] = []
        self.words: list[Word] = []
        """Finished so far, all of them."""

    @property
    def text(self) -> str:
        """All text so far, unfinished word included, without the space that may already announce the next one."""
        return self._text.text.rstrip(" ")

    def text_with(self, tokens: list[Token]) -> str:
        """All text, if `tokens` followed; they do not become part of it."""
        return self._continued(tokens).text.rstrip(" ") if tokens else self.text

    def ending_with(self, tokens: list[Token]) -> "Transcript":
        """The whole segment, if `tokens` followed and were its last: an unfinished character shows as U+FFFD."""
        other = copy.copy(self)
        other._text, other._scores, other.words = self._text.copy(), list(self._scores), list(self.words)
        other.add(tokens)
        other.finish()
        return other

    def add(self, tokens: list[Token]) -> list[Word]:
        """Appends tokens and returns the words that are finished now."""
        finished = []
        for token in tokens:
            if not self._word and not self._text.is_inside_character:
                self._start_frame = token.timestamp
            part, *others = _SPACE.split(self._text.add(token.id))
            self._extend(part, token)
            for part in others:
                finished += self._finish_word()
                self._start_frame = token.timestamp
                self._extend(part, token)
        return finished

    def finish(self) -> list[Word]:
        """Ends the text; returns the last word, if there is one."""
        self._word += self._text.finish()
        return self._finish_word()

    def _continued(self, tokens: list[Token]) -> IncrementalText:
        text = self._text.copy()
        for token in tokens:
            text.add(token.id)
        return text

    def _extend(self, part: str, token: Token) -> None:
        if part:
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
