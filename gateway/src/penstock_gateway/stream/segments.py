"""A replica's results as a stream's events: what is new in each segment. No I/O."""

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
        """The event of the next result; None without news."""
        self._words += map(_word, result.new_words)
        words, processed_s = tuple(self._words), result.audio_processed_s
        if not result.is_final:
            if result.text == self._text and not result.new_words:
                return None
            self._text = result.text
            return Partial(self._segment, result.text, result.stable_chars, words, processed_s)
        alternatives = tuple(map(_alternative, result.alternatives))
        final = Final(
            self._segment,
            result.text,
            words,
            alternatives,
            processed_s,
            result.end_s,
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
