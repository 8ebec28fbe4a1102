"""The requests of a stream that restarts at its endpoints, and its results. Independent of the stages."""

from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.endpointing.restarts import Piece, Restarts
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.words import Word
from penstock.pipeline.stages.audio_rows import AudioRequest

_NO_SAMPLES = np.zeros(0, np.float32)


class _Planned(NamedTuple):
    """A request that waits."""

    request: AudioRequest
    is_new: bool = True
    """False where its audio is sent again."""
    is_obsolete: bool = False
    """True where its result is dropped: it ends what follows an endpoint."""


class RestartingStream:
    """Takes a stream's audio, gives its requests one after the other, and takes the result of each.

    Every segment is what a stream of its audio alone is. The end of the stream is a request of its own, because
    nothing can be sent again behind it.
    """

    def __init__(self, stream_id: Hashable, options: dict, sample_rate_hz: int, request_samples: int):
        """request_samples: of a request at most; what follows an endpoint in its request is decoded in vain."""
        self._stream_id, self._options = stream_id, options
        self._request_samples = request_samples
        self._restarts = Restarts(sample_rate_hz)
        self._waiting: deque[_Planned] = deque()
        self._sent: _Planned | None = None
        """The request whose result comes next."""
        self._is_started = False
        self._last_word_ms: int | None = None
        """End of the segment's last word so far, in the recognizer's time."""

    def add(self, samples: np.ndarray, finalize: bool = False, is_end: bool = False) -> None:
        """Adds samples [n] float32; `finalize` and `is_end` as in `AudioRequest`."""
        self._waiting += self._requests(samples, finalize and not is_end)
        if is_end:
            self._waiting.append(_Planned(AudioRequest(self._stream_id, _NO_SAMPLES, is_end=True)))

    @property
    def has_request(self) -> bool:
        """True while there is a request to send, also one to send again."""
        return bool(self._waiting)

    def next_request(self) -> AudioRequest:
        """The request to send now, for `take`."""
        self._sent = self._waiting.popleft()
        request = self._sent.request
        if self._sent.is_new and not request.is_end:
            self._restarts.note(Piece(request.samples, request.finalize))
        return request if self._is_started else replace(request, is_start=True, options=self._options)

    def take(self, result: StreamResult) -> list[StreamResult]:
        """Takes the result of the request; returns the results of the stream that it holds, any number."""
        assert self._sent is not None
        self._is_started = True
        (request, _, is_obsolete), taken = self._sent, []
        entries = () if is_obsolete else result.entries
        for number, entry in enumerate(entries, start=1):
            taken.append(self._in_stream(entry))
            self._last_word_ms = entry.words[-1].end_ms if entry.words else self._last_word_ms
            self._restarts.note_processed(entry.audio_processed_s)
            if not entry.is_final:
                continue
            last_word_ms, self._last_word_ms = self._last_word_ms, None
            if request.is_end:  # nothing can be sent again, and nothing follows an endpoint in the last frames
                self._restarts.segment += 1
            elif request.finalize and number == len(entries):
                self._restarts.note_end()
            else:
                self._restart(entry.audio_processed_s, last_word_ms)
                break
        return taken

    def _requests(self, samples: np.ndarray, finalize: bool, is_new: bool = True) -> list[_Planned]:
        starts = range(0, max(1, len(samples)), self._request_samples)
        parts = [samples[start : start + self._request_samples] for start in starts]
        return [
            _Planned(AudioRequest(self._stream_id, part, finalize=finalize and start == starts[-1]), is_new)
            for start, part in zip(starts, parts, strict=True)
        ]

    def _restart(self, processed_s: float, last_word_ms: int | None) -> None:
        """Sends the audio from the border on again, before what waits."""
        unsent = 0  # of what was to be sent again
        while self._waiting and not self._waiting[0].is_new:
            unsent += len(self._waiting.popleft().request.samples)
        pieces = self._restarts.restart(processed_s, last_word_ms, unsent)
        again = [_Planned(AudioRequest(self._stream_id, _NO_SAMPLES, finalize=True), is_new=False, is_obsolete=True)]
        for samples, ends_segment in pieces:
            again += self._requests(samples, ends_segment, is_new=False)
        self._waiting.extendleft(reversed(again))

    def _in_stream(self, entry: StreamResult) -> StreamResult:
        """The result with the stream's times."""
        return replace(
            entry,
            segment=self._restarts.segment,
            audio_processed_s=self._restarts.stream_s(entry.audio_processed_s),
            words=self._words(entry.words),
            alternatives=tuple(replace(each, words=self._words(each.words)) for each in entry.alternatives),
            earlier=(),
        )

    def _words(self, words: tuple[Word, ...]) -> tuple[Word, ...]:
        in_stream = self._restarts.stream_ms
        return tuple(word._replace(start_ms=in_stream(word.start_ms), end_ms=in_stream(word.end_ms)) for word in words)
