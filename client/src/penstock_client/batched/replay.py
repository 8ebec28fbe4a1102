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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from penstock_client import limits
from penstock_client.alignment import ChunkGeometry
from penstock_client.batched.rows import Part
from penstock_client.batched.speaker_numbers import SpeakerNumbers
from penstock_common.options import Parameter
from penstock_common.results import Result, Word
from penstock_common.samples import SAMPLE_RATE_HZ

_WARM_UP = "warm_up_chunks"
_BORDER_SAMPLES = 80
"""By which the same border of segments may differ: servers send seconds as float32."""
T = TypeVar("T", bound=Result)


class _Sent(NamedTuple):
    part: Part
    sent_s: float


class _Kept:
    """The newest parts of a stream, oldest first. Beyond `max_samples` it forgets the oldest."""

    def __init__(self, max_samples: float):
        self.sent: deque[_Sent] = deque()
        self.bytes = 0
        self.forgotten_samples = 0
        """Samples of the stream up to the first part that is kept."""
        self.parameters: Mapping[str, Parameter] = {}
        """Options of the stream's start, with changes of parts that are not kept."""
        self.old_ends = self.forced_ends = 0
        """Ends by the caller that are reported and whose parts are kept: before and after the endpoint of a replay."""
        self._max_samples = max_samples

    def note_base(self, ends: int) -> None:
        """A replay begins with an endpoint before the last `ends` reported ends by the caller."""
        self.forced_ends, reported_ends = min(self.forced_ends, ends), self.reported_ends
        self.old_ends = reported_ends - self.forced_ends

    @property
    def reported_ends(self) -> int:
        """Ends by the caller that are reported and whose parts are kept."""
        return self.old_ends + self.forced_ends

    def add(self, part: Part, sent_s: float) -> None:
        """Adds the newest part."""
        if part.is_start:
            self.parameters = part.parameters
        self.bytes += part.audio.nbytes
        self.sent.append(_Sent(part, sent_s))
        while part.end_samples - self.forgotten_samples > self._max_samples:
            self._forget_oldest()

    def forget(self, end_samples: int) -> None:
        """Forgets the parts before this number of samples of the stream."""
        while self.sent and self.sent[0].part.end_samples <= end_samples:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self.sent.popleft().part
        # A replay begins behind it, with the options that it has set.
        self.parameters = {**self.parameters, **oldest.changes}
        self.bytes -= oldest.audio.nbytes
        self.forgotten_samples = oldest.end_samples
        if oldest.is_final and self.old_ends:
            self.old_ends -= 1
        elif oldest.is_final and self.forced_ends:
            self.forced_ends -= 1


class _Endpoint(NamedTuple):
    """An endpoint that is reported."""

    samples: int
    """Covered by the segments before it."""
    segment: int
    """The caller's index of the segment after it."""
    ends: int
    """Ends by the caller before it, and after the endpoint before."""


class _ServerStream:
    """The position of a server's stream in the caller's, and what it will report again."""

    def __init__(self, offset_samples: int = 0, segment_shift: int | None = 0, restarted_s: float = -1.0):
        self.offset_samples = offset_samples
        """The begin of the server's stream in the caller's."""
        self.segment_shift = segment_shift
        """Added to its segments; None before its first result."""
        self.restarted_s = restarted_s
        self.words = self.tokens = self.ends = 0
        """Still to come again: in its current segment, and ends by the caller before that."""
        self.shift_frames = 0
        """Added to the times of its tokens, up to its next endpoint."""
        self.is_repeating = segment_shift is None
        """Since the restart, no result has covered more audio than the caller's."""

    @property
    def offset_ms(self) -> int:
        """The begin of the server's stream in the caller's, for the times of words."""
        return round(1000 * self.offset_samples / SAMPLE_RATE_HZ)


class Replay:
    """The parts that a new stream would need, and the position of each server's stream in the caller's stream.

    Beyond `max_samples` it forgets the oldest: until the next segment, the stream can then not be resumed.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, max_samples: float = math.inf, has_speakers: bool = False
    ):
        """has_speakers: audio of earlier segments is repeated, too, in which they are known again."""
        self.has_results = False
        self.speakers = SpeakerNumbers() if has_speakers else None
        """None once the stream goes on without speakers."""
        self._context_samples = round(limits.SPEAKER_CONTEXT_S * SAMPLE_RATE_HZ) if has_speakers else 0
        """Audio before the segment that is repeated, also once the stream has no speakers any more."""
        self._now_s = clock
        self.kept = _Kept(max_samples)
        self.server = _ServerStream()
        self._endpoints = deque([_Endpoint(0, 0, 0)])
        """The one that a replay begins with, and those after it. Without speakers only the last one."""
        self._ends = 0
        """Ends by the caller after the last one."""
        self.segment_start_samples = 0
        """Samples before the current segment."""
        self._segment: int | None = None
        """The caller's index of the current segment; None before the first result."""
        self._after_end = 0
        """The caller's index of the segment after the last end by the caller."""
        # Of this segment the caller has these words and tokens, and the audio that they cover
        self._words = self._tokens = self._covered_samples = 0
        self._covered_s = 0.0  # as it was reported

    @property
    def has_words(self) -> bool:
        """True if the caller has words of the current segment."""
        return self._words > 0

    def add(self, part: Part) -> None:
        """Notes a part before it is sent."""
        self.kept.add(part, self._now_s())

    def is_whole(self, geometry: ChunkGeometry | None = None) -> bool:
        """True if `restart` has all that a new stream needs."""
        return self.kept.forgotten_samples <= self._begin(geometry)[0]

    def restart(self, geometry: ChunkGeometry | None = None) -> list[Part]:
        """The parts to send to a new stream, whose first takes the options of the caller's.

        Without a geometry nothing before the segment is repeated: a server that publishes none has no `warm_up_chunks`.
        """
        offset_samples, warm_up_chunks = self._begin(geometry)
        server = self.server = _ServerStream(offset_samples, None, self._now_s())
        server.words, server.tokens = self._words, self._tokens
        if self.speakers is not None:
            self.speakers.restart()
        # Without a warm-up the server counts frames from its own begin, and the caller from the segment's.
        if geometry is not None and offset_samples and not warm_up_chunks:
            chunks = offset_samples // geometry.chunk_samples - geometry.chunks(self._endpoints[0].samples)
            server.shift_frames = chunks * geometry.chunk_frames
        parts = self.requests(geometry)
        # Ends before the replay's begin are not sent again, so their results do not come again.
        unsent = sum(sent.part.is_final for sent in self.kept.sent) - sum(part.is_final for part in parts)
        server.ends = max(0, self.kept.reported_ends - unsent)
        return parts

    def requests(self, geometry: ChunkGeometry | None = None) -> list[Part]:
        """The parts that `restart` would return now."""
        start_samples, warm_up_chunks = self._begin(geometry)
        repeated: list[tuple[Part, int, bool]] = []
        old_ends = self.kept.old_ends
        parameters = dict(self.kept.parameters)
        for part, _ in self.kept.sent:
            is_old = part.is_final and old_ends > 0
            old_ends -= is_old
            # A part without samples at the border belongs to what follows: it may end a segment or change options.
            is_repeated = part.end_samples > start_samples or (part.end_samples == start_samples and not part.samples)
            if is_repeated:
                repeated.append((part, min(part.samples, part.end_samples - start_samples), not is_old))
            if is_old or not is_repeated:
                parameters |= part.changes
        parameters |= {_WARM_UP: warm_up_chunks} if warm_up_chunks else {}
        parts: list[Part] = []
        for part, samples, ends in repeated:
            if not parts and ends and part.changes:  # a start has the options before them
                parts.append(part.again(0, parameters, ends=False))
            parts.append(part.again(samples, None if parts else parameters, ends))
        return parts

    def _begin(self, geometry: ChunkGeometry | None) -> tuple[int, int]:
        """The position in the caller's stream where a new one begins, and the chunks of its warm-up."""
        if geometry is None:
            return self.segment_start_samples, 0
        size, warm_up_samples = geometry.chunk_samples, round(limits.WARM_UP_S * SAMPLE_RATE_HZ)
        # An endpoint ends the chunk that covers its segment's last sample.
        chunks = geometry.chunks(self._endpoints[0].samples)
        first_chunk = max(0, self.segment_start_samples - max(warm_up_samples, self._context_samples)) // size
        if first_chunk > chunks or not chunks:
            return first_chunk * size, 0
        warm_up_chunks = min(geometry.chunks(warm_up_samples), chunks)
        return (chunks - warm_up_chunks) * size, warm_up_chunks

    def new_result(self, result: T) -> T | None:
        """The server's result as the caller's next, or None where the caller has it already."""
        server, words = self.server, list[Word]()
        if self.speakers is not None:
            words = self.speakers.words(result, server.offset_ms)
        if server.ends:
            # Segments that the caller has ended come again before the present one: they are only counted.
            server.ends -= result.is_final and not result.is_endpoint
            self._match(words)
            return None
        # A server may count the segments of a stream from any number.
        if self._segment is None:
            self._endpoints[0] = self._endpoints[0]._replace(segment=result.segment)
        if server.segment_shift is None:
            server.segment_shift = max(self._endpoints[0].segment, self._after_end) - result.segment
        self.has_results = True
        segment = result.segment + server.segment_shift
        more_samples = self._samples_after_border(result)
        ends = result.is_final and result.is_endpoint
        if self._segment is not None and (segment < self._segment or more_samples < _BORDER_SAMPLES * (2 * ends - 1)):
            if ends and -_BORDER_SAMPLES <= more_samples < math.inf:
                # Its next segment is the caller's, also where it has ended more or fewer in the audio before that.
                server.segment_shift = self._segment - 1 - result.segment
            self._match(words)
            return None
        result = self._without_repeated(self._shifted(result, segment))
        covered_samples = round(result.audio_processed_s * SAMPLE_RATE_HZ)
        is_behind = server.is_repeating and covered_samples <= self._covered_samples
        if is_behind:  # it may have more words of the same audio
            if not result.new_words and not result.new_tokens and not result.is_final:
                return None
            result, covered_samples = replace(result, audio_processed_s=self._covered_s), self._covered_samples
        if not result.is_final:
            self._words += len(result.new_words)
            self._tokens += len(result.new_tokens)
        server.is_repeating, self._covered_samples, self._segment = is_behind, covered_samples, result.segment
        self._covered_s = result.audio_processed_s
        if result.is_final:
            if self.speakers is not None:
                result = self.speakers.renumbered(result, words)
            self._segment += 1
            self._end_segment(result.is_endpoint, covered_samples)
        return result

    def _samples_after_border(self, result: Result) -> float:
        """Samples that a result covers beyond the current segment's begin; inf where nothing before is repeated."""
        server = self.server
        if not server.is_repeating or server.offset_samples >= self.segment_start_samples:
            return math.inf
        covered_samples = server.offset_samples + round(result.audio_processed_s * SAMPLE_RATE_HZ)
        return covered_samples - self.segment_start_samples

    def _match(self, words: Sequence[Word]) -> None:
        """The caller has these words of the present server."""
        if self.speakers is not None:
            self.speakers.match(words)

    def skip_segment(self) -> int:
        """The next segment is empty and needs no server: returns its index."""
        skipped = self._segment or 0
        self._segment = self._after_end = skipped + 1
        return skipped

    def _without_repeated(self, result: T) -> T:
        """The result without words and tokens that the caller has."""
        server, words, tokens = self.server, self.server.words, self.server.tokens
        if not words and not tokens:
            return result
        server.words = max(0, words - len(result.new_words))
        server.tokens = max(0, tokens - len(result.new_tokens))
        return replace(
            result,
            new_words=result.new_words[words:],
            new_tokens=result.new_tokens[tokens:],
            new_timestamps=result.new_timestamps[tokens:],
        )

    def _end_segment(self, is_endpoint: bool, covered_samples: int) -> None:
        """The next segment begins; what no new stream would need is forgotten."""
        kept, server = self.kept, self.server
        self._words = self._tokens = server.words = server.tokens = 0
        if is_endpoint and kept.sent and kept.sent[-1].part.is_end:
            return  # the results of an offline model, whose context is the whole stream, come after its end
        if is_endpoint:
            self.segment_start_samples, server.shift_frames = covered_samples, 0
            self._endpoints.append(_Endpoint(covered_samples, self._segment or 0, self._ends))
            self._ends = 0
        else:
            ends, reported = [part.end_samples for part, _ in kept.sent if part.is_final], kept.reported_ends
            self.segment_start_samples = ends[reported] if reported < len(ends) else covered_samples
            kept.forced_ends += 1
            self._ends, self._after_end = self._ends + 1, self._segment or 0
        self._forget(kept)

    def _forget(self, kept: _Kept) -> None:
        """Forgets what no replay would begin with any more."""
        start_samples, context_samples = self.segment_start_samples, self._context_samples
        # One that a replay can begin with stays: a decoder starts anew only at an endpoint.
        while len(self._endpoints) > 1 and self._endpoints[0].samples < start_samples - context_samples:
            self._endpoints.popleft()
        kept.note_base(sum(each.ends for each in islice(self._endpoints, 1, None)) + self._ends)
        base_samples, warm_up_samples = self._endpoints[0].samples, round(limits.WARM_UP_S * SAMPLE_RATE_HZ)
        first = start_samples - max(warm_up_samples, context_samples)
        if first <= base_samples:
            first = base_samples - warm_up_samples
        kept.forget(first - round(limits.WARM_UP_MARGIN_S * SAMPLE_RATE_HZ))

    def _shifted(self, result: T, segment: int) -> T:
        server = self.server
        delay_s = self._delay_s(result) if server.is_repeating else 0.0
        if not server.offset_samples and segment == result.segment and not delay_s:  # then there is no other shift
            return result
        return replace(
            result.shifted(server.offset_ms),
            segment=segment,
            audio_processed_s=result.audio_processed_s + server.offset_samples / SAMPLE_RATE_HZ,
            new_timestamps=tuple(frame + server.shift_frames for frame in result.new_timestamps),
            round_trip_s=result.round_trip_s + delay_s,
        )

    def _delay_s(self, result: Result) -> float:
        """Time from sending the audio of a result until it was sent again."""
        server = self.server
        covered_samples = server.offset_samples + round(result.audio_processed_s * SAMPLE_RATE_HZ)
        sent = (sent_s for part, sent_s in self.kept.sent if part.end_samples >= covered_samples)
        return max(0.0, server.restarted_s - next(sent, server.restarted_s))
