"""A stream's events for its protocol, from a replica's results. Times are milliseconds from the stream's start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penstock_client import StreamResult
from penstock_common.results import Alternative, Word, later, with_speakers
from penstock_common.writing import join_texts


@dataclass(frozen=True, slots=True)
class Partial:
    """The text of the current segment so far."""

    segment: int
    """Index of the segment, from 0."""
    text: str
    stable_chars: int
    """Leading characters of `text` that cannot change."""
    words: tuple[Word, ...]
    """The completed words of the segment so far."""
    audio_processed_s: float
    """Audio that `text` covers, from the stream's start."""
    channel: int = 0
    """See `LiveStreamOptions`."""


@dataclass(frozen=True, slots=True)
class Final:
    """The text of a finished segment. A segment without words has a Final with empty text."""

    segment: int
    text: str
    words: tuple[Word, ...]
    """All words of the segment."""
    alternatives: tuple[Alternative, ...]
    """Best first; empty unless the stream's options ask for them."""
    audio_processed_s: float
    end_s: float
    """The border: the next segment begins here."""
    is_last: bool
    """True for the Final that answers `finish`."""
    forced: bool
    """True for a Final that answers `end_segment`."""
    channel: int = 0
    """The same as in `Partial`."""
    language: str = ""
    """The last that the model named in it; "" where it named none."""


Event = Partial | Final


def confidence(word: Word) -> float:
    """0 .. 1; 1 where the server sends none."""
    return 1.0 if word.confidence is None else word.confidence


def placed(event: Event, start_ms: int, channel: int) -> Event:
    """The event of a channel, or 0, of a recording whose first sample has this time."""
    if not start_ms and not channel:
        return event
    words = later(event.words, start_ms)
    if isinstance(event, Partial):
        return replace(event, words=words, channel=channel)
    alternatives = tuple(replace(each, words=later(each.words, start_ms)) for each in event.alternatives)
    end_s = event.end_s + start_ms / 1000
    return replace(event, words=words, alternatives=alternatives, end_s=end_s, channel=channel)


def speaker_turns(final: Final) -> list[Final]:
    """A segment for each speaker in turn, with the words; as it is where it has one."""
    return split(final, [list(part) for _, part in groupby(final.words, lambda word: word.speaker)])


def split(final: Final, parts: Sequence[Sequence[Word]]) -> list[Final]:
    """A segment for each part of its words; as it is where that is one."""
    if len(parts) < 2:
        return [final]
    return [replace(final, text=join_texts(word.text for word in part), words=tuple(part)) for part in parts]


class Segments:
    """The segments of one stream, which may be fewer than the replica's.

    joins: only the client ends segments; those that the replica ends by itself are parts of the client's. Alternatives
    then differ in the last part only. hides_silence: a segment that ends without text in silence is none.
    """

    def __init__(self, joins: bool = False, hides_silence: bool = False) -> None:
        self._joins, self._hides_silence = self.rule = joins, hides_silence
        self._segment = 0
        self._before = ""
        """Text of the segment's earlier parts."""
        self._words_before: tuple[Word, ...] = ()
        self._words: list[Word] = []
        self._text = ""

    def add(self, result: StreamResult) -> Event | None:
        """The event of the next result; None without a change."""
        self._words += result.new_words
        if result.word_speakers:
            self._words = with_speakers(self._words, result.word_speakers)
        text = self._joined(result.text)
        if not result.is_final:
            return self._partial(text, len(text) - len(result.text) + result.stable_chars, result)
        if result.is_endpoint and self._joins:
            self._before, self._words_before = text, (*self._words_before, *self._words)
            self._words = []
            return self._partial(text, len(text), result)
        if result.is_endpoint and self._hides_silence and not text:
            return None
        words = (*self._words_before, *self._words)
        final = Final(
            self._segment,
            text,
            words,
            tuple(map(self._alternative, result.alternatives)),
            result.audio_processed_s,
            result.end_s,
            is_last=result.is_last,
            forced=result.answers_finalize,
            language=result.language,
        )
        self._segment += 1
        self._words, self._words_before, self._text, self._before = [], (), "", ""
        return final

    def _partial(self, text: str, stable_chars: int, result: StreamResult) -> Partial | None:
        if text == self._text and not result.new_words:
            return None
        self._text = text
        words = (*self._words_before, *self._words)
        return Partial(self._segment, text, min(stable_chars, len(text)), words, result.audio_processed_s)

    def _joined(self, text: str) -> str:
        return join_texts((self._before, text))

    def _alternative(self, alternative: Alternative) -> Alternative:
        words = (*self._words_before, *alternative.words)
        return Alternative(self._joined(alternative.text), alternative.score, words)
