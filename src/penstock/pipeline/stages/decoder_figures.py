"""Numbers as figures in the decoder stage's final results; the only place for all protocols and files.

A figure has the first start, the last end and the least confidence of the words that it replaces. Tokens, scores and
the times of tokens stay.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.errors import StreamError
from penstock.pipeline.results.figures import find_figures
from penstock.pipeline.results.results import StreamResult, with_earlier
from penstock.pipeline.results.words import Word
from penstock_common.options import AUTO, FIGURE_LANGUAGES
from penstock_common.writing import join_texts

MAX_PAUSE_MS = 500
"""A longer pause between two words tells two numbers apart."""


class _Segment(NamedTuple):
    text: str
    words: tuple[Word, ...]
    speakers: tuple[int, ...]
    """The speaker of each word; () without speakers."""


class FigurePlaces:
    """Streams that asked for figures, by slot; the others cost nothing here."""

    def __init__(self) -> None:
        self._languages: dict[int, str] = {}
        self._words: dict[int, list[Word]] = {}
        """The words of the segment so far."""

    def use(self, slot: int, language: str) -> None:
        """A segment begins: one of `FIGURE_LANGUAGES`, `AUTO` for that of each segment's tag, "" for words."""
        self.close(slot)
        if language:
            self._languages[slot], self._words[slot] = language, []

    def close(self, slot: int) -> None:
        """The stream is over, or another one begins."""
        self._languages.pop(slot, None)
        self._words.pop(slot, None)

    def rewrite(self, slots: np.ndarray, answers: dict[int, StreamResult | StreamError]) -> None:
        """Writes figures into the answers to rows of different streams; slots: [R] int64, of all rows."""
        for place, answer in answers.items() if self._languages else ():
            slot = int(slots[place])
            if slot in self._languages and not isinstance(answer, StreamError):
                answers[place] = with_earlier([self._entry(slot, entry) for entry in answer.entries])

    def _entry(self, slot: int, result: StreamResult) -> StreamResult:
        """Text that is not final has no words, and may change."""
        words, language = self._words[slot], self._languages[slot]
        words += result.words
        if not result.is_final:
            return replace(result, words=(), stable_chars=0)
        self._words[slot] = []
        code = result.language.partition("-")[0].lower() if language == AUTO else language
        text, written, speakers = _figures(result.text, tuple(words), result.word_speakers, code)
        alternatives = []
        for each in result.alternatives:
            other, own, who = _figures(each.text, each.words, each.speakers or (), code)
            alternatives.append(replace(each, text=other, words=own, speakers=each.speakers and who))
        return replace(
            result,
            text=text,
            words=written,
            word_speakers=speakers,
            stable_chars=len(text),
            alternatives=tuple(alternatives),
        )


def _figures(text: str, words: tuple[Word, ...], speakers: tuple[int, ...], language: str) -> _Segment:
    """A segment, or an alternative of one, with figures. A number is of one speaker and has no pause in it."""
    pauses = [after.start_ms - before.end_ms > MAX_PAUSE_MS for before, after in pairwise(words)]
    turns = [before != after for before, after in pairwise(speakers)] or pauses
    apart = [False, *map(max, pauses, turns)][: len(words)]
    figures = find_figures([word.text for word in words], language, apart) if language in FIGURE_LANGUAGES else ()
    if not figures:
        return _Segment(text, words, speakers)
    written, who = list(words), list(speakers)
    for start, end, figure in reversed(figures):
        spoken = words[start:end]
        end_ms, confidence = max(word.end_ms for word in spoken), min(word.confidence for word in spoken)
        written[start:end] = [Word(figure, spoken[0].start_ms, end_ms, confidence)]
        who[start:end] = speakers[start : start + 1]
    texts = [word.text for word in written]
    has_blanks = text.count(" ") == len(words) - 1  # between all words: a fifth of the time
    return _Segment(" ".join(texts) if has_blanks else join_texts(texts), tuple(written), tuple(who))
