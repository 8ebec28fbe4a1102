"""A replica's results as a stream's events: what is new in each segment. No I/O."""

from penstock_client import Alternative, StreamResult, Word
from penstock_client.protocol import with_speakers
from penstock_client.writing import join_texts
from penstock_gateway.stream.events import Event, Final, Partial


class Segments:
    """The segments of one stream, which may be fewer than the replica's.

    joins: only the client ends segments; those that the replica ends by itself are parts of the client's. Alternatives
    then differ in the last part only. hides_silence: a segment that ends without text in silence is none.
    """

    def __init__(self, joins: bool = False, hides_silence: bool = False) -> None:
        self._joins, self._hides_silence = joins, hides_silence
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
