"""A replica's results as a stream's events: numbers segments from 0 and keeps the words of the current one."""

from penstock_client import Alternative as ClientAlternative
from penstock_client import StreamResult
from penstock_client import Word as ClientWord
from penstock_gateway.stream.events import Alternative, Event, Final, Partial, Word


class Segments:
    """The segments of one stream."""

    def __init__(self) -> None:
        self._segment = 0
        self._words: list[Word] = []
        self._text = ""

    def add(self, result: StreamResult) -> Event | None:
        """The event of the next result; None where it has no news."""
        self._words += map(_word, result.new_words)
        if result.is_final:
            return self._end(result)
        if result.text == self._text and not result.new_words:
            return None
        self._text = result.text
        return Partial(self._segment, result.text, result.stable_chars, tuple(self._words), result.audio_processed_s)

    def _end(self, result: StreamResult) -> Final:
        final = Final(
            segment=self._segment,
            text=result.text,
            words=tuple(self._words),
            alternatives=tuple(map(_alternative, result.alternatives)),
            audio_processed_s=result.audio_processed_s,
            end_s=result.audio_processed_s,
            is_last=result.is_last,
            forced=result.answers_finalize,
        )
        self._segment += 1
        self._words, self._text = [], ""
        return final


def _word(word: ClientWord) -> Word:
    return Word(word.text, word.start_ms, word.end_ms, 1.0 if word.confidence is None else word.confidence)


def _alternative(alternative: ClientAlternative) -> Alternative:
    return Alternative(alternative.text, alternative.score, tuple(map(_word, alternative.words)))
