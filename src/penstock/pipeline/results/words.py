"""Tokens that a stream decoder returns chunk by chunk, and the words with times that they make."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.model.tokenizer import IncrementalText, Tokenizer
from penstock_common.writing import is_mark, split_words


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
    """Text that it adds, if a lexicon says so; None: its piece."""


class Word(NamedTuple):
    """One complete word."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float = 1.0
    """0 .. 1, from `word_confidence`."""


def word_confidence(acoustic_scores: Sequence[float]) -> float:
    """0 .. 1, the lowest probability of a word's tokens, from their log-probabilities among labels and blank.

    Without language model and boosting. One doubtful token makes the word doubtful. ValueError if there are none.
    """
    if not acoustic_scores:
        raise ValueError("a word without tokens has no confidence")
    return math.exp(min(*acoustic_scores, 0.0))


class SegmentTranscript:
    """Transcript of one segment. A word is complete when the next one begins or the segment ends."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder_frame_ms: float,
        start_ms: float = 0.0,
        dropped: frozenset[int] = frozenset(),
        keeps_words: bool = True,
        shortest_token_frames: int = 1,
    ):
        """start_ms: where the segment begins in its stream; word times count from the stream's start.

        dropped: tokens that are neither in the text nor in a word; keeps_words: False leaves `words` empty.
        shortest_token_frames: what a token of duration 0 lasts.
        """
        self._frame_ms = encoder_frame_ms
        self._start_ms = start_ms
        self._tokenizer = tokenizer
        self._text = IncrementalText(tokenizer, dropped)
        self._bytes: list[Token] = []
        """Tokens of an incomplete character."""
        self._word = ""
        self._start_frame = self._end_frame = 0
        self._blank: Token | None = None
        """The newest token, if it is only white space: the next word begins with it."""
        self._shortest_token_frames = shortest_token_frames
        self._scores: list[float] = []
        self._keeps_words = keeps_words
        self.words: list[Word] = []
        """All complete words so far: some 200 bytes each, in a segment of hours megabytes."""

    @property
    def text(self) -> str:
        """All text so far, with the incomplete word, without trailing spaces."""
        return self._text.text

    def text_with(self, tokens: list[Token]) -> str:
        """Returns the text as if `tokens` followed; the transcript does not change."""
        return self._continued(tokens).text if tokens else self.text

    def ending_with(self, tokens: list[Token]) -> "SegmentTranscript":
        """Returns the segment's transcript as if it ended with `tokens`. An incomplete character becomes U+FFFD."""
        other = copy.copy(self)
        other._text, other._bytes = self._text.copy(), list(self._bytes)
        other._scores, other.words = list(self._scores), list(self.words)
        other.add(tokens)
        other.finish()
        return other

    def add(self, tokens: list[Token]) -> list[Word]:
        """Appends tokens and returns the words that are complete now."""
        finished = []
        for token in tokens:
            piece = self._tokenizer.piece(token.id) if token.text is None else token.text
            if self._bytes and not isinstance(piece, bytes):
                finished += self._break_character()
            new = self._text.add(token.id, token.text)
            if self._text.is_inside_character:
                finished += self._append(new, self._bytes)  # a character that this byte does not continue
                self._bytes = [token] if new else [*self._bytes, token]
                continue
            finished += self._append(new, [*self._bytes, token])
            self._bytes = []
            # The label between the words of a character model belongs to no word; a lone "\u2581" begins the next one.
            if isinstance(piece, str) and piece.isspace() and token.id != self._tokenizer.separator:
                self._blank = token
        return finished

    def finish(self) -> list[Word]:
        """Ends the text and returns the last word, if any."""
        return self._break_character() + self._finish_word()

    def _break_character(self) -> list[Word]:
        """An incomplete character becomes U+FFFD."""
        finished = self._append(self._text.finish(), self._bytes)
        self._bytes = []
        return finished

    def _continued(self, tokens: list[Token]) -> IncrementalText:
        text = self._text.copy()
        for token in tokens:
            text.add(token.id, token.text)
        return text

    def _append(self, new: str, tokens: list[Token]) -> list[Word]:
        """Appends new text and the tokens that it consists of; returns the words that are complete now."""
        part, *others = split_words(new, self._word)
        self._extend(part, tokens)
        finished = []
        for part in others:
            finished += self._finish_word()
            self._extend(part, tokens)
        return finished

    def _extend(self, part: str, tokens: list[Token]) -> None:
        """Appends a part of the word, "" for none, and its tokens. A mark leaves the word's end as it is."""
        if part or (tokens and tokens[-1].text == ""):
            if not self._word:
                self._start_frame = (self._blank or tokens[0]).timestamp
            if not self._word or not is_mark(part):
                self._end_frame = tokens[-1].timestamp + max(tokens[-1].duration, self._shortest_token_frames)
            self._word += part
            self._scores += [token.score for token in tokens]
            self._blank = None

    def _finish_word(self) -> list[Word]:
        text, self._word = self._word, ""
        scores, self._scores = self._scores, []
        if not text:
            return []
        frames = (self._start_frame, max(self._end_frame, self._start_frame + self._shortest_token_frames))
        start_ms, end_ms = (round(self._start_ms + frame * self._frame_ms) for frame in frames)
        word = Word(text, start_ms, end_ms, word_confidence(scores))
        if self._keeps_words:
            self.words.append(word)
        return [word]


class TokenAlternative(NamedTuple):
    """One of the N best token sequences of a whole segment."""

    tokens: list[Token]
    """Tokens after the ones reported as stable; with `is_whole`, all."""
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Log-probability of the network alone."""
    is_whole: bool = False
    """True where stable tokens may differ from those reported."""


@dataclass(frozen=True)
class Decoded:
    """Tokens that a chunk added to one stream."""

    stable: list[Token]
    """New tokens that will not change."""
    unstable: list[Token]
    """Tokens of the best hypothesis after the stable ones; may change."""
    alternatives: list[TokenAlternative]
    """Best first, at the end of a segment if the stream requested N-best."""
    lattice: SegmentLattice | None = None
    """With the alternatives of a search over a decoding graph."""


NOTHING = Decoded([], [], [])
"""The tokens of most chunks: none. Shared, and compared with `is`."""
