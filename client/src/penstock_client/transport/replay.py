"""Selects what a new stream on the server receives to resume a stream after a lost connection. No I/O, no threads.

A segment after `finalize` is recognized as if its audio were a separate stream. At an endpoint only the decoder starts
anew: the audio before it is repeated as well, so that the encoder has its context, and the server withholds its words.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock_client.alignment import ChunkGeometry
from penstock_client.protocol import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Alternative, Parameter, Request, Result, Word

WARM_UP_S = 10
"""Audio before an endpoint that gives the encoder its context: with it, 0 of some 500 words change (docs/log.md)."""
_MARGIN_S = 3
"""Kept before it: chunks end up to one of their durations after the audio that they cover."""
_WARM_UP = "warm_up_chunks"


class _Sent(NamedTuple):
    request: Request
    end_samples: int
    """Of the caller's stream, with the request's."""
    sent_s: float


class Replay:
    """The requests that a new stream would need, and the place of each server stream in the caller's stream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.has_results = False
        self._now_s = clock
        self._sent: deque[_Sent] = deque()
        """Oldest first."""
        self._parameters: Mapping[str, Parameter] = {}
        self._end_samples = 0
        self._encoder_start_samples = 0
        """The encoder has started anew here: at the stream's start, or after a segment that the caller ended."""
        self._endpoint_samples: int | None = None
        """Covered by the last segment that an endpoint has ended since then."""
        self._segment: int | None = None
        """The caller's index of the current segment; None before the first result."""
        # Of this segment the caller has these words and tokens, and the audio that they cover
        self._words = self._tokens = self._covered_samples = 0
        # Of the server's stream
        self._segment_shift: int | None = 0
        self._repeated_words = self._repeated_tokens = 0
        """Still to come again in its current segment."""
        self._restarted_s = -1.0
        self._is_repeating = False
        """Nothing has come since the restart that the caller had not."""
        self.offset_samples = 0
        """First sample of the server's stream, counted in the caller's."""

    @property
    def needs_geometry(self) -> bool:
        """True if `restart` needs the chunks of the server's model."""
        return self._endpoint_samples is not None

    @property
    def start_s(self) -> float:
        """Words from here on are recognized again."""
        return (self._endpoint_samples or self._encoder_start_samples) / SAMPLE_RATE_HZ

    def add(self, request: Request) -> None:
        """Notes a request before it is sent."""
        if request.is_start:
            self._parameters = request.parameters
        self._end_samples += request.samples
        self._sent.append(_Sent(request, self._end_samples, self._now_s()))

    def forget_newest(self) -> None:
        """The newest request was not sent after all."""
        if self._sent:
            self._end_samples -= self._sent.pop().request.samples

    def restart(self, geometry: ChunkGeometry | None = None) -> list[Request]:
        """The requests to send to a new stream, whose first takes the options of the caller's.

        Without a geometry the encoder's context is lost: a server that publishes none has no `warm_up_chunks`.
        """
        self._segment_shift = None
        self._repeated_words, self._repeated_tokens = self._words, self._tokens
        self._restarted_s, self._is_repeating = self._now_s(), True
        self.offset_samples, warm_up_chunks = self._encoder_start_samples, 0
        if self._endpoint_samples is not None and geometry is None:
            self.offset_samples = self._endpoint_samples
        elif self._endpoint_samples is not None and geometry is not None:
            size = geometry.chunk_samples
            # The endpoint ends the chunk that covers its segment's last sample, counted from the encoder's start.
            chunks = -(-(self._endpoint_samples - self._encoder_start_samples) // size)
            warm_up_chunks = min(-(-WARM_UP_S * SAMPLE_RATE_HZ // size), chunks)
            self.offset_samples += (chunks - warm_up_chunks) * size
        requests = [_from(self.offset_samples, sent) for sent in self._sent if self._is_needed(sent)]
        if requests:
            extra = {_WARM_UP: warm_up_chunks} if warm_up_chunks else {}
            parameters = {**self._parameters, **requests[0].parameters, **extra}
            requests[0] = replace(requests[0], is_start=True, parameters=parameters)
        return requests

    def _is_needed(self, sent: _Sent) -> bool:
        return sent.end_samples > self.offset_samples or (
            not sent.request.samples and sent.end_samples == self.offset_samples
        )

    def take(self, result: Result) -> Result | None:
        """The server's result as the caller's next, or None where the caller has it already."""
        if self._segment_shift is None:
            self._segment_shift = (self._segment or 0) - result.segment
        self.has_results = True
        result = self._without_repeated(self._shifted(result, result.segment + self._segment_shift))
        covered_samples = round(result.audio_processed_s * SAMPLE_RATE_HZ)
        if not result.is_final:
            if self._is_repeating and covered_samples <= self._covered_samples:
                return None
            self._words += len(result.new_words)
            self._tokens += len(result.new_tokens)
        self._is_repeating, self._covered_samples, self._segment = False, covered_samples, result.segment
        if result.is_final:
            self._segment += 1
            self._end_segment(result.is_endpoint, covered_samples)
        return result

    def _without_repeated(self, result: Result) -> Result:
        """The result without words and tokens that the caller has."""
        words, tokens = self._repeated_words, self._repeated_tokens
        if not words and not tokens:
            return result
        self._repeated_words = max(0, words - len(result.new_words))
        self._repeated_tokens = max(0, tokens - len(result.new_tokens))
        return replace(
            result,
            new_words=result.new_words[words:],
            new_tokens=result.new_tokens[tokens:],
            new_timestamps=result.new_timestamps[tokens:],
        )

    def _end_segment(self, is_endpoint: bool, covered_samples: int) -> None:
        """The next segment begins; what no new stream would need is forgotten."""
        self._words = self._tokens = self._repeated_words = self._repeated_tokens = 0
        if is_endpoint:
            self._endpoint_samples = covered_samples
            first = covered_samples - (WARM_UP_S + _MARGIN_S) * SAMPLE_RATE_HZ
            while self._sent and self._sent[0].end_samples <= first:
                self._sent.popleft()
            return
        self._endpoint_samples = None
        while self._sent:
            request, self._encoder_start_samples, _ = self._sent.popleft()
            if request.is_final:
                break

    def _shifted(self, result: Result, segment: int) -> Result:
        delay_s = self._delay_s(result) if self._is_repeating else 0.0
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

    def _delay_s(self, result: Result) -> float:
        """Time from sending the audio of a result until it was sent again."""
        covered_samples = self.offset_samples + round(result.audio_processed_s * SAMPLE_RATE_HZ)
        sent_s = next((sent.sent_s for sent in self._sent if sent.end_samples >= covered_samples), self._restarted_s)
        return max(0.0, self._restarted_s - sent_s)


def _from(start_samples: int, sent: _Sent) -> Request:
    """The request with its audio from there on, not as a start."""
    request = sent.request
    before = max(0, request.samples - (sent.end_samples - start_samples))
    return replace(request, is_start=False, audio=request.audio[before * BYTES_PER_SAMPLE :])


def _shift(words: tuple[Word, ...], shift_ms: int) -> tuple[Word, ...]:
    return tuple(replace(word, start_ms=word.start_ms + shift_ms, end_ms=word.end_ms + shift_ms) for word in words)


def _shift_alternative(alternative: Alternative, shift_ms: int) -> Alternative:
    return replace(alternative, words=_shift(alternative.words, shift_ms))
