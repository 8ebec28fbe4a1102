"""The restarts of one stream as requests and results: what to send again at an endpoint, and what results mean then."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock_client.protocol import FINALIZE, MAX_REQUEST_SAMPLES, SAMPLE_RATE_HZ, Request, Result, Word
from penstock_client.restarts import Piece, Restarts


class Taken(NamedTuple):
    """A reply to a request."""

    results: list[Result]
    """What it holds, in the stream's times."""
    again: list[Request] | None
    """At an endpoint, the requests that follow `FINALIZE_REQUEST`; all that are under way are obsolete. Else None."""


FINALIZE_REQUEST = Request(audio=b"", is_start=False, is_end=False, parameters=FINALIZE)
"""Ends what follows an endpoint; its reply is obsolete."""


class RestartingRequests:
    """The requests of a stream that restarts at its endpoints. Not thread-safe."""

    def __init__(self) -> None:
        self._restarts = Restarts(SAMPLE_RATE_HZ)
        self._last_word_ms: int | None = None
        """End of the segment's last word so far, in the server's time."""

    def note(self, request: Request) -> None:
        """Notes a request that will be sent, other than the stream's end."""
        self._restarts.note(Piece(np.frombuffer(request.audio, "<f4"), request.is_final))

    def take(self, results: Sequence[Result], is_final: bool, is_end: bool, unsent_samples: int) -> Taken:
        """Takes the reply to a request.

        is_final, is_end: of the request; unsent_samples: of all noted requests, those that are not under way.
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
                pieces = self._restarts.restart(result.audio_processed_s, last_word_ms, unsent_samples)
                return Taken(taken, [request for piece in pieces for request in _requests(piece)])
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


def _requests(piece: Piece) -> list[Request]:
    """A piece as requests, of which the last one may end the segment."""
    starts = range(0, max(1, len(piece.samples)), MAX_REQUEST_SAMPLES)
    return [
        Request(
            audio=piece.samples[start : start + MAX_REQUEST_SAMPLES].tobytes(),
            is_start=False,
            is_end=False,
            parameters=FINALIZE if piece.ends_segment and start == starts[-1] else {},
        )
        for start in starts
    ]
