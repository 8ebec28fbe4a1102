"""A replica's results as a stream's events: times and segments of the stream, and what an endpoint asks for.

With restarts, each segment is a stream of its own audio: see `penstock_client.restarts`. No I/O.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock_client import Alternative as ClientAlternative
from penstock_client import StreamResult
from penstock_client import Word as ClientWord
from penstock_client.restarts import Piece, Restarts
from penstock_gateway.stream.events import Alternative, Event, Final, Partial, Word
from penstock_gateway.stream.live_stream import Samples

_NO_SAMPLES = np.zeros(0, np.float32)


class Endpoint(NamedTuple):
    """A final result that the recognizer's rules ended: what follows it starts anew in the pause."""

    result: StreamResult


class Segments:
    """The segments of one stream. Without restarts an endpoint is a report, and the recognizer goes on."""

    def __init__(self, sample_rate_hz: int, has_restarts: bool):
        self._sample_rate_hz = sample_rate_hz
        self._restarts = Restarts(sample_rate_hz) if has_restarts else None
        self._segment = 0
        self._words: list[Word] = []
        self._last_word_ms: int | None = None
        """End of the segment's last word, in the recognizer's time."""
        self._text = ""
        self._finalizes: deque[bool] = deque()
        """Unanswered ends of segments; True for that of a restart."""
        self._is_dropping = False
        """True until the `finalize` of a restart is answered."""
        self._is_finishing = False

    @property
    def has_restarts(self) -> bool:
        """True if the stream ends with a forced end: nothing could be sent again behind its end."""
        return self._restarts is not None

    def note_sent(self, samples: Samples) -> None:
        """Notes audio [n] that was sent."""
        if self._restarts is not None:
            self._restarts.note(Piece(samples))

    def note_end_sent(self, is_last: bool = False) -> None:
        """Notes an end of a segment that was sent; with `is_last` it answers the end of the stream."""
        self._is_finishing = is_last
        if self._restarts is not None:
            self._finalizes.append(False)
            self._restarts.note(Piece(_NO_SAMPLES, True))

    def add(self, result: StreamResult) -> Event | Endpoint | None:
        """The event of the next result; None without news; an `Endpoint` where the caller is to restart."""
        if self._restarts is None:
            return self._event(result, result.answers_finalize, result.is_last)
        if self._is_dropping or result.is_last:
            if result.answers_finalize and self._finalizes.popleft():
                self._is_dropping = False
            return None
        self._restarts.note_processed(result.audio_processed_s)
        if result.is_final and not result.answers_finalize:
            return Endpoint(result)
        if not result.is_final:
            return self._event(result, False, False)
        self._finalizes.popleft()
        is_last = self._is_finishing and not self._finalizes
        event = self._event(result, not is_last, is_last)
        self._restarts.note_end()
        return event

    def restart(self, endpoint: Endpoint) -> tuple[Final, Sequence[Piece]]:
        """The final of a segment that ended at an endpoint, and what to send again behind a `finalize`."""
        assert self._restarts is not None
        result = endpoint.result
        self._add_words(result)
        last_word_ms, processed_s = self._last_word_ms, self._restarts.stream_s(result.audio_processed_s)
        words, alternatives = tuple(self._words), tuple(map(self._alternative, result.alternatives))
        pieces = self._restarts.restart(result.audio_processed_s, last_word_ms)
        end_s = self._restarts.start_samples / self._sample_rate_hz
        final = Final(self._segment, result.text, words, alternatives, processed_s, end_s, is_last=False, forced=False)
        self._begin()
        self._is_dropping = True
        self._finalizes.append(True)
        self._finalizes += [False for piece in pieces if piece.ends_segment]
        return final, pieces

    def _event(self, result: StreamResult, forced: bool, is_last: bool) -> Event | None:
        self._add_words(result)
        restarts = self._restarts
        processed_s = result.audio_processed_s if restarts is None else restarts.stream_s(result.audio_processed_s)
        if not result.is_final:
            if result.text == self._text and not result.new_words:
                return None
            self._text = result.text
            return Partial(self._segment, result.text, result.stable_chars, tuple(self._words), processed_s)
        alternatives = tuple(map(self._alternative, result.alternatives))
        final = Final(
            self._segment, result.text, tuple(self._words), alternatives, processed_s, processed_s, is_last, forced
        )
        self._begin()
        return final

    def _begin(self) -> None:
        """A segment begins."""
        self._segment += 1
        self._words, self._text, self._last_word_ms = [], "", None

    def _add_words(self, result: StreamResult) -> None:
        self._words += map(self._word, result.new_words)
        if result.new_words:
            self._last_word_ms = result.new_words[-1].end_ms

    def _word(self, word: ClientWord) -> Word:
        confidence = 1.0 if word.confidence is None else word.confidence
        if self._restarts is None:
            return Word(word.text, word.start_ms, word.end_ms, confidence)
        in_stream = self._restarts.stream_ms
        return Word(word.text, in_stream(word.start_ms), in_stream(word.end_ms), confidence)

    def _alternative(self, alternative: ClientAlternative) -> Alternative:
        return Alternative(alternative.text, alternative.score, tuple(map(self._word, alternative.words)))
