"""The words of one stream, from tokens that arrive chunk by chunk. Knows nothing of tensors."""

from typing import NamedTuple

from penstock.tokenizer import IncrementalText, Tokenizer


class Token(NamedTuple):
    """One label."""

    id: int
    timestamp: int
    """Encoder frame, counted from the stream's start."""
    duration: int
    """Encoder frames; 0 for RNN-T."""
    score: float
    """Log-probability."""


class Word(NamedTuple):
    """One finished word."""

    text: str
    start_ms: int
    end_ms: int


class Transcript:
    """Text so far, and words as they are finished: a word is, once the next one begins or the stream ends."""

    def __init__(self, tokenizer: Tokenizer, encoder_frame_ms: float):
        self._tokenizer = tokenizer
        self._frame_ms = encoder_frame_ms
        self._text = IncrementalText(tokenizer)
        self._word = IncrementalText(tokenizer)
        self._start_frame = self._end_frame = 0

    @property
    def text(self) -> str:
        """All text so far, unfinished word included."""
        return self._text.text

    def add(self, tokens: list[Token]) -> list[Word]:
        """Appends tokens and returns the words that are finished now."""
        finished = []
        for token in tokens:
            piece = self._tokenizer.piece(token.id)
            if isinstance(piece, str) and piece.startswith(" "):
                finished += self._finish_word()
            if not self._word.text:
                self._start_frame = token.timestamp
            self._text.add(token.id)
            self._word.add(token.id)
            self._end_frame = token.timestamp + max(token.duration, 1)
        return finished

    def finish(self) -> list[Word]:
        """Ends the text; returns the last word, if there is one."""
        self._text.finish()
        return self._finish_word()

    def _finish_word(self) -> list[Word]:
        self._word.finish()
        text = self._word.text.strip()
        self._word = IncrementalText(self._tokenizer)
        if not text:
            return []
        return [Word(text, round(self._start_frame * self._frame_ms), round(self._end_frame * self._frame_ms))]
