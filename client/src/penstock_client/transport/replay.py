"""What a new stream on the server has to receive to resume a stream after a lost connection. No I/O, no threads.

A segment is recognized as if its audio were a separate stream. So the requests since the last final segment, sent
again to a new stream, give the results that the lost stream would have given.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock_client.protocol import SAMPLE_RATE_HZ, Alternative, Parameter, Request, Result, Word


class _Sent(NamedTuple):
    request: Request
    sent_s: float


class Replay:
    """The requests of the current segment, and the place of each server stream in the caller's stream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.has_results = False
        self._now_s = clock
        self._requests: deque[_Sent] = deque()
        """Since the last final segment, oldest first."""
        self._answered = 0
        """How many of them were answered to the caller."""
        self._repeated = 0
        """How many results of the server's stream the caller has already."""
        self._parameters: Mapping[str, Parameter] = {}
        self._samples = 0
        """Of all final segments."""
        self._segment: int | None = None
        """The caller's index of the current segment."""
        self._segment_shift: int | None = 0
        self.offset_samples = 0
        """Where the server's stream begins in the caller's."""
        self._restarted_s = -1.0
        self.has_endpoints = False
        """A segment has ended by itself. From then on nothing is kept: the stream cannot be resumed."""

    @property
    def start_s(self) -> float:
        """The audio from here on is sent again."""
        return self._samples / SAMPLE_RATE_HZ

    def add(self, request: Request) -> None:
        """Notes a request before it is sent."""
        if self.has_endpoints:
            return
        if request.is_start:
            self._parameters = request.parameters
        self._requests.append(_Sent(request, self._now_s()))

    def forget_newest(self) -> None:
        """The newest request was not sent after all."""
        if self._requests:
            self._requests.pop()

    def restart(self) -> list[Request]:
        """The requests to send to a new stream, whose first takes the options of the caller's."""
        self._repeated = self._answered
        self._segment_shift = None
        self.offset_samples = self._samples
        self._restarted_s = self._now_s()
        requests = [sent.request for sent in self._requests]
        if requests:
            parameters = {**self._parameters, **requests[0].parameters}
            requests[0] = replace(requests[0], is_start=True, parameters=parameters)
        return requests

    def take(self, result: Result) -> Result | None:
        """The server's result as the caller's next, or None where the caller has it already."""
        if self._segment_shift is None:
            self._segment_shift = (self._segment or 0) - result.segment
        if self._repeated:
            self._repeated -= 1
            return None
        self.has_results = True
        if self.has_endpoints or self._is_endpoint(result):
            self.has_endpoints = True
            self._requests.clear()
            return self._shifted(result, result.segment + self._segment_shift, 0.0)
        sent_s = self._requests[self._answered].sent_s
        self._answered += 1
        self._segment = result.segment + self._segment_shift
        shifted = self._shifted(result, self._segment, max(0.0, self._restarted_s - sent_s))
        if result.is_final:
            self._segment += 1
            for _ in range(self._answered):
                self._samples += self._requests.popleft().request.samples
            self._answered = 0
        return shifted

    def _is_endpoint(self, result: Result) -> bool:
        """True for a final result that no request has ended, and for what follows one in the same reply."""
        if self._answered >= len(self._requests):
            return True
        return result.is_final and not self._requests[self._answered].request.is_final

    def _shifted(self, result: Result, segment: int, delay_s: float) -> Result:
        if not self.offset_samples and segment == result.segment and not delay_s:
            return result
        shift_ms = round(1000 * self.offset_samples / SAMPLE_RATE_HZ)
        return replace(
            result,
            segment=segment,
            audio_processed_s=result.audio_processed_s + self.offset_samples / SAMPLE_RATE_HZ,
            new_words=_shift(result.new_words, shift_ms),
            alternatives=tuple(_shift_alternative(each, shift_ms) for each in result.alternatives),
            round_trip_s=result.round_trip_s + delay_s,
        )


def _shift(words: tuple[Word, ...], shift_ms: int) -> tuple[Word, ...]:
    return tuple(replace(word, start_ms=word.start_ms + shift_ms, end_ms=word.end_ms + shift_ms) for word in words)


def _shift_alternative(alternative: Alternative, shift_ms: int) -> Alternative:
    return replace(alternative, words=_shift(alternative.words, shift_ms))
