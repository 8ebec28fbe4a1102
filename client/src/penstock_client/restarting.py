"""The restarts of one stream: what to send again at an endpoint, and what results mean then. No I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock_client.protocol import SAMPLE_RATE_HZ, Result, Word
from penstock_client.restarts import Piece, Restarts


class Taken(NamedTuple):
    """What a reply means."""

    results: list[Result]
    """What it holds, in the stream's times. At most the last one is final, but for the stream's end."""
    again: list[Piece] | None
    """At an endpoint, what follows a `finalize` without audio; all that is under way is obsolete. Else None."""


class RestartingStream:
    """What a stream that restarts at its endpoints has sent, and the results that it takes. Not thread-safe."""

    def __init__(self, sample_rate_hz: int = SAMPLE_RATE_HZ) -> None:
        self._restarts = Restarts(sample_rate_hz)
        self._rate_hz = sample_rate_hz
        self._last_word_ms: int | None = None
        """End of the segment's last word so far, in the server's time."""
        self.restarted_samples = 0
        """Where the newest endpoint has restarted the stream, in samples of the stream; 0 before the first."""

    @property
    def start_s(self) -> float:
        """Where the current segment begins in the stream."""
        return self._restarts.start_samples / self._rate_hz

    def note(self, piece: Piece) -> None:
        """Notes audio that is sent."""
        self._restarts.note(piece)

    def take(self, results: Sequence[Result], is_final: bool, is_end: bool = False, unsent_samples: int = 0) -> Taken:
        """Takes the reply to a request.

        is_final, is_end: of the request; unsent_samples: of all noted audio, samples that are not under way.
        """
        taken: list[Result] = []
        for number, result in enumerate(results, start=1):
            taken.append(self._in_stream(result))
            self._last_word_ms = result.new_words[-1].end_ms if result.new_words else self._last_word_ms
            self._restarts.note_processed(result.audio_processed_s)
            if not result.is_final:
                continue
            last_word_ms, self._last_word_ms = self._last_word_ms, None
            if is_end:  # nothing can be sent again, and nothing follows an endpoint in the last frames
                self._restarts.segment += 1
            elif is_final and number == len(results):
                self._restarts.note_end()
            else:
                again = self._restarts.restart(result.audio_processed_s, last_word_ms, unsent_samples)
                self.restarted_samples = self._restarts.start_samples
                return Taken(taken, again)
        return Taken(taken, None)

    def _in_stream(self, result: Result) -> Result:
        return replace(
            result,
            segment=self._restarts.segment,
            audio_processed_s=self._restarts.stream_s(result.audio_processed_s),
            new_words=self._words(result.new_words),
            alternatives=tuple(replace(each, words=self._words(each.words)) for each in result.alternatives),
        )

    def _words(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        in_stream = self._restarts.stream_ms
        return tuple(replace(word, start_ms=in_stream(word.start_ms), end_ms=in_stream(word.end_ms)) for word in words)
