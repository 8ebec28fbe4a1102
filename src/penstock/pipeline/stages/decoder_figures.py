"""Numbers as figures in the decoder stage's final results; the only place for all protocols and files.

A figure has the first start, the last end and the least confidence of the words that it replaces. Tokens, scores and
the times of tokens stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from penstock.errors import StreamError
from penstock.pipeline.results.figures import find_figures
from penstock.pipeline.results.results import Alternative, StreamResult, with_earlier
from penstock.pipeline.results.words import Word
from penstock_common.options import AUTO, FIGURE_LANGUAGES
from penstock_common.writing import join_texts

MAX_PAUSE_MS = 500
"""A longer pause between two words tells two numbers apart."""


class FigurePlaces:
    """Streams that asked for figures, by slot; the others cost nothing here."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[str, list[Word]]] = {}
        """The rules of a stream, and the words of its segment so far."""

    def use(self, slot: int, language: str) -> None:
        """A segment begins: one of `FIGURE_LANGUAGES`, `AUTO` for that of each segment's tag, "" for words."""
        self._segments.pop(slot, None)
        if language:
            self._segments[slot] = language, []

    def rewrite(self, slots: np.ndarray, answers: dict[int, StreamResult | StreamError]) -> None:
        """Writes figures into the answers to rows of different streams; slots: [R] int64, of all rows."""
        for place, answer in answers.items() if self._segments else ():
            slot = int(slots[place])
            if slot in self._segments and not isinstance(answer, StreamError):
                answers[place] = with_earlier([self._entry(slot, entry) for entry in answer.entries])

    def _entry(self, slot: int, result: StreamResult) -> StreamResult:
        """Text that is not final has no words, and may change."""
        language, words = self._segments[slot]
        words += result.words
        if not result.is_final:
            return replace(result, words=(), stable_chars=0)
        self._segments[slot] = language, []
        code = result.language.partition("-")[0].lower() if language == AUTO else language
        alternatives = list[Alternative]()
        for each in result.alternatives:
            text, written, speakers = _figures(each.text, each.words, each.speakers or (), code)
            alternatives.append(replace(each, text=text, words=written, speakers=speakers or each.speakers))
        text, written, speakers = _figures(result.text, words, result.word_speakers, code)
        result = replace(result, text=text, words=written, word_speakers=speakers, stable_chars=len(text))
        return replace(result, alternatives=tuple(alternatives)) if alternatives else result


def _figures(
    text: str, words: Sequence[Word], speakers: tuple[int, ...], language: str
) -> tuple[str, tuple[Word, ...], tuple[int, ...]]:
    """A text with figures, its words and their speakers. A number is of one speaker and has no pause in it."""
    apart = [False, *(after.start_ms - before.end_ms > MAX_PAUSE_MS for before, after in pairwise(words))]
    if speakers:
        apart[1:] = [pause or one != other for pause, (one, other) in zip(apart[1:], pairwise(speakers), strict=True)]
    spoken = [word.text for word in words] if language in FIGURE_LANGUAGES else []
    figures = find_figures(spoken, language, apart) if spoken else []
    written, who = list(words), list(speakers)
    for start, end, figure in reversed(figures):
        least = min([each.confidence for each in words[start:end]])
        written[start:end] = [Word(figure, words[start].start_ms, words[end - 1].end_ms, least)]
        who[start:end] = speakers[start : start + 1]
    if figures:
        has_blanks = text.count(" ") == len(words) - 1  # between all words: a fifth of the time
        texts = [word.text for word in written]
        text = " ".join(texts) if has_blanks else join_texts(texts)
    return text, tuple(written), tuple(who)
