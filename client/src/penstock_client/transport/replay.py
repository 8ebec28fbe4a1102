"""Requests that a new stream on a server needs to continue one that was lost. No I/O, no threads.

At an endpoint only the decoder starts anew: the audio before it is repeated as well, so that the encoder has its
context, and the server withholds its words. Where the caller has ended a segment, nothing starts anew: the audio before
it and the ends in that audio are repeated, and what comes before the last of them is left out.
An offline model recognizes a stream as a whole, after its end: it is repeated whole, and segments that are told are
left out. After an end by the caller it starts anew.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from penstock_client.alignment import ChunkGeometry
from penstock_client.protocol import SAMPLE_RATE_HZ, Alternative, Parameter, Result, Word

WARM_UP_S = 10
"""Audio before a segment that gives the encoder its context: with it, 0 of some 500 words change."""
_MARGIN_S = 3
"""Kept before it: chunks end up to one of their durations after the audio that they cover."""
_WARM_UP = "warm_up_chunks"


class Repeatable(Protocol):
    """A request, or a row of one, as a replay needs it."""

    @property
    def samples(self) -> int:
        """Number of samples."""

    @property
    def is_start(self) -> bool:
        """True for the stream's first one."""

    @property
    def is_end(self) -> bool:
        """True for the stream's last one."""

    @property
    def is_final(self) -> bool:
        """True where a segment ends, so that the reply is its final result."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """With a start: the stream's options."""

    @property
    def changes(self) -> Mapping[str, Parameter]:
        """The options that change with it, in a running stream."""

    def again(self: "R", samples: int, parameters: Mapping[str, Parameter] | None = None, ends: bool = True) -> "R":
        """With its last samples only: as a start with these parameters more, or not as a start.

        ends: as it is; else it ends no segment.
        """


R = TypeVar("R", bound=Repeatable)
T = TypeVar("T", bound=Result)


@dataclass(frozen=True)
class _Sent(Generic[R]):
    request: R
    end_samples: int
    """Samples of the caller's stream up to the request's end."""
    sent_s: float


class Replay(Generic[R]):
    """The requests that a new stream would need, and the place of each server stream in the caller's stream.

    Beyond `max_samples` it forgets the oldest: until the next segment, the stream can then not be resumed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_samples: float = math.inf):
        self.has_results = False
        self.held_samples = 0
        self._max_samples = max_samples
        self._now_s = clock
        self._sent: deque[_Sent[R]] = deque()
        """Oldest first."""
        self._forgotten_samples = 0
        """End of what is not held any more."""
        self._parameters: Mapping[str, Parameter] = {}
        self._end_samples = 0
        self._endpoint_samples = self._forced_samples = 0
        """Covered by the last segments that an endpoint and, since then, the caller have ended; 0 without one."""
        self._old_ends = self._forced_ends = 0
        """Ends by the caller that are told and whose requests are held: before and after that endpoint."""
        self._segment: int | None = None
        """The caller's index of the current segment; None before the first result."""
        self._first_segment = 0
        """The index of the one that `restart` begins with."""
        # Of this segment the caller has these words and tokens, and the audio that they cover
        self._words = self._tokens = self._covered_samples = 0
        self._covered_s = 0.0  # as it was told
        # Of the server's stream
        self._segment_shift: int | None = 0
        self._repeated_words = self._repeated_tokens = self._repeated_ends = 0
        """Still to come again: in its current segment, and ends by the caller before that."""
        self._shift_frames = 0
        """Added to the times of its tokens, up to its next endpoint."""
        self._restarted_s = -1.0
        self._is_repeating = False
        """Since the restart, no result has covered more audio than the caller's."""
        self.offset_samples = 0
        """The place in the caller's stream where it begins."""

    @property
    def start_s(self) -> float:
        """Words from here on are recognized again."""
        return self.segment_start_samples / SAMPLE_RATE_HZ

    @property
    def _told_ends(self) -> int:
        return self._old_ends + self._forced_ends

    @property
    def segment_start_samples(self) -> int:
        """Samples before the current segment."""
        return self._forced_samples or self._endpoint_samples

    @property
    def has_words(self) -> bool:
        """True if the caller has words of the current segment."""
        return self._words > 0

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Options of the stream's start, with changes whose requests are not held."""
        return self._parameters

    def add(self, request: R) -> None:
        """Notes a request before it is sent."""
        if request.is_start:
            self._parameters = request.parameters
        self._end_samples += request.samples
        self.held_samples += request.samples
        self._sent.append(_Sent(request, self._end_samples, self._now_s()))
        while self.held_samples > self._max_samples:
            self._forget_oldest()

    def is_whole(self, geometry: ChunkGeometry | None = None) -> bool:
        """True if `restart` has all that a new stream needs."""
        return self._forgotten_samples <= self._place(geometry)[0]

    def restart(self, geometry: ChunkGeometry | None = None) -> list[R]:
        """The requests to send to a new stream, whose first takes the options of the caller's.

        Without a geometry nothing before the segment is repeated: a server that publishes none has no `warm_up_chunks`.
        """
        self._segment_shift = None
        self._repeated_words, self._repeated_tokens = self._words, self._tokens
        self._restarted_s, self._is_repeating = self._now_s(), True
        self.offset_samples, warm_up_chunks = self._place(geometry)
        self._shift_frames = 0
        if geometry is not None and self.offset_samples and not warm_up_chunks:
            chunks = self.offset_samples // geometry.chunk_samples - geometry.chunks(self._endpoint_samples)
            self._shift_frames = chunks * geometry.chunk_frames
        requests = self.requests(geometry)
        unsent = sum(sent.request.is_final for sent in self._sent) - sum(request.is_final for request in requests)
        self._repeated_ends = max(0, self._told_ends - unsent)
        return requests

    def requests(self, geometry: ChunkGeometry | None = None) -> list[R]:
        """The requests that `restart` would return now."""
        start_samples, warm_up_chunks = self._place(geometry)
        repeated: list[tuple[R, int, bool]] = []
        old_ends = self._old_ends
        parameters = dict(self._parameters)
        for request, end_samples in ((sent.request, sent.end_samples) for sent in self._sent):
            is_old = request.is_final and old_ends > 0
            old_ends -= is_old
            is_repeated = end_samples > start_samples or (end_samples == start_samples and not request.samples)
            if is_repeated:
                repeated.append((request, min(request.samples, end_samples - start_samples), not is_old))
            if is_old or not is_repeated:
                parameters |= request.changes
        parameters |= {_WARM_UP: warm_up_chunks} if warm_up_chunks else {}
        requests: list[R] = []
        for request, samples, ends in repeated:
            if not requests and ends and request.changes:  # a start has the options before them
                requests.append(request.again(0, parameters, ends=False))
            requests.append(request.again(samples, None if requests else parameters, ends))
        return requests

    def _place(self, geometry: ChunkGeometry | None) -> tuple[int, int]:
        """The place in the caller's stream where a new one begins, and the chunks of its warm-up."""
        if geometry is None:
            return self.segment_start_samples, 0
        size = geometry.chunk_samples
        # An endpoint ends the chunk that covers its segment's last sample.
        chunks = geometry.chunks(self._endpoint_samples)
        forced_chunk = max(0, self._forced_samples - WARM_UP_S * SAMPLE_RATE_HZ) // size
        if forced_chunk > chunks or not chunks:
            return forced_chunk * size, 0
        warm_up_chunks = min(geometry.chunks(WARM_UP_S * SAMPLE_RATE_HZ), chunks)
        return (chunks - warm_up_chunks) * size, warm_up_chunks

    def _forget_oldest(self) -> _Sent[R]:
        oldest = self._sent.popleft()
        self._parameters = {**self._parameters, **oldest.request.changes}
        self.held_samples -= oldest.request.samples
        self._forgotten_samples = oldest.end_samples
        if oldest.request.is_final and self._old_ends:
            self._old_ends -= 1
        elif oldest.request.is_final and self._forced_ends:
            self._forced_ends -= 1
        return oldest

    def new_result(self, result: T) -> T | None:
        """The server's result as the caller's next, or None where the caller has it already."""
        if self._repeated_ends:
            self._repeated_ends -= result.is_final and not result.is_endpoint
            return None
        if self._segment is None:
            self._first_segment = result.segment
        if self._segment_shift is None:
            self._segment_shift = self._first_segment - result.segment
        self.has_results = True
        segment = result.segment + self._segment_shift
        if self._segment is not None and segment < self._segment:
            return None
        result = self._without_repeated(self._shifted(result, segment))
        covered_samples = round(result.audio_processed_s * SAMPLE_RATE_HZ)
        is_behind = self._is_repeating and covered_samples <= self._covered_samples
        if is_behind:  # it may have more words of the same audio
            if not result.new_words and not result.new_tokens and not result.is_final:
                return None
            result, covered_samples = replace(result, audio_processed_s=self._covered_s), self._covered_samples
        if not result.is_final:
            self._words += len(result.new_words)
            self._tokens += len(result.new_tokens)
        self._is_repeating, self._covered_samples, self._segment = is_behind, covered_samples, result.segment
        self._covered_s = result.audio_processed_s
        if result.is_final:
            self._segment += 1
            self._end_segment(result.is_endpoint, covered_samples)
        return result

    def skip_segment(self) -> int:
        """The next segment is empty and needs no server: returns its index."""
        skipped = self._segment or 0
        self._segment = self._first_segment = skipped + 1
        return skipped

    def _without_repeated(self, result: T) -> T:
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
        if is_endpoint and self._sent and self._sent[-1].request.is_end:
            return  # the results of an offline model, whose context is the whole stream, come after its end
        self._first_segment = self._segment or 0
        context_samples = (WARM_UP_S + _MARGIN_S) * SAMPLE_RATE_HZ
        if is_endpoint:
            self._endpoint_samples, self._forced_samples, self._shift_frames = covered_samples, 0, 0
            self._old_ends, self._forced_ends = self._told_ends, 0
        else:
            ends, told = [sent.end_samples for sent in self._sent if sent.request.is_final], self._told_ends
            self._forced_samples = ends[told] if told < len(ends) else covered_samples
            self._forced_ends += 1
        first = self.segment_start_samples - context_samples
        if first <= self._endpoint_samples:
            first = self._endpoint_samples - context_samples
        while self._sent and self._sent[0].end_samples <= first:
            self._forget_oldest()

    def _shifted(self, result: T, segment: int) -> T:
        delay_s = self._delay_s(result) if self._is_repeating else 0.0
        if not self.offset_samples and segment == result.segment and not delay_s:  # without an offset, no other shift
            return result
        shift_ms = round(1000 * self.offset_samples / SAMPLE_RATE_HZ)
        return replace(
            result,
            segment=segment,
            audio_processed_s=result.audio_processed_s + self.offset_samples / SAMPLE_RATE_HZ,
            new_words=_shift(result.new_words, shift_ms),
            new_timestamps=tuple(frame + self._shift_frames for frame in result.new_timestamps),
            alternatives=tuple(_shift_alternative(each, shift_ms) for each in result.alternatives),
            round_trip_s=result.round_trip_s + delay_s,
        )

    def _delay_s(self, result: Result) -> float:
        """Time from sending the audio of a result until it was sent again."""
        covered_samples = self.offset_samples + round(result.audio_processed_s * SAMPLE_RATE_HZ)
        sent_s = next((sent.sent_s for sent in self._sent if sent.end_samples >= covered_samples), self._restarted_s)
        return max(0.0, self._restarted_s - sent_s)


def _shift(words: tuple[Word, ...], shift_ms: int) -> tuple[Word, ...]:
    return tuple(replace(word, start_ms=word.start_ms + shift_ms, end_ms=word.end_ms + shift_ms) for word in words)


def _shift_alternative(alternative: Alternative, shift_ms: int) -> Alternative:
    return replace(alternative, words=_shift(alternative.words, shift_ms))
