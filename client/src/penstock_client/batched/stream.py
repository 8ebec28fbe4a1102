"""One audio stream of a `BatchedClient`: push samples, receive results. Its link sends and receives for it."""

import math
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_client.alignment import ChunkGeometry, Samples
from penstock_client.batched.link import Link
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import END, FINALIZE, NO_SAMPLES, Answer, OnAnswer, StreamResult
from penstock_client.batched.served import ServedStream
from penstock_common.errors import StreamClosedError
from penstock_common.options import Parameter, changes_of
from penstock_common.samples import SAMPLE_RATE_HZ, as_samples

_MAX_UNANSWERED_ENDS = 4
"""Ends of segments on their way: each takes a step of the encoder of its own, for which other streams wait."""


class BatchedStream(ServedStream):
    """A stream opened by a `BatchedClient`. One task may push while another iterates.

    Use it as an async context manager, or close it, so that its slot on the server becomes free.
    """

    def __init__(
        self,
        link: Link,
        parameters: Mapping[str, Parameter],
        geometry: ChunkGeometry | None,
        max_unanswered_samples: int,
        on_answer: OnAnswer | None = None,
        replay: Replay | None = None,
        polls: bool = False,
    ):
        """parameters: the options of its start, which goes with its first row.

        geometry: of the chunks that are sent whole. replay: of a stream that may be moved; polls: an offline model's.
        """
        super().__init__(link, parameters, geometry, on_answer, replay, polls)
        self._max_unanswered_samples = max_unanswered_samples
        self._results: deque[StreamResult] = deque()
        """The remaining results of the answer that is being iterated."""
        self._ends: deque[int] = deque(maxlen=_MAX_UNANSWERED_ENDS)
        """The numbers, from 1, of the last rows that end a segment."""
        self._is_finished = False
        """No more audio comes."""

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was pushed that complete no chunk, and wait here for those that do."""
        return self._aligner.held_samples

    @property
    def can_park(self) -> bool:
        """True for a stream that may be moved."""
        return self._replay is not None and bool(self.fingerprint)

    @property
    def replay_bytes(self) -> int:
        """Memory of the audio that is kept for a move."""
        return self._replay.kept.bytes if self._replay is not None else 0

    @property
    def restarted_from_s(self) -> float:
        """Begin of the segment that a move sends again."""
        return self._replay.segment_start_samples / SAMPLE_RATE_HZ if self._replay is not None else 0.0

    @property
    def keeps_speakers(self) -> bool:
        """True while a move has to find a speaker model."""
        return self.has_speakers and self.moves.keep_speakers

    def start(self) -> None:
        """Sends its start without audio; else that goes with the first row."""
        self._enqueue(NO_SAMPLES)

    @property
    def is_accepted(self) -> bool:
        """True once a server has accepted it."""
        return self._answers.have_begun

    async def accepted(self) -> None:
        """Returns once the server has accepted the stream. Raises ClientError if it does not."""
        await self._wait_until(lambda: self.is_accepted)

    async def started(self) -> None:
        """Sends its start without audio, and returns once the server has accepted it; else the stream is cancelled."""
        self.start()
        try:
            await self.accepted()
        except BaseException:
            self.cancel()
            raise

    async def push(self, samples: npt.ArrayLike) -> None:
        """Takes mono audio [n] at the model's rate, floats in -1 .. 1 or int16, and copies it.

        Whole chunks are sent with the next request; no samples are sent at once, which keeps an idle stream open. Waits
        while more than the client's `max_unanswered_s` of audio is unanswered. Raises ClientError, and ValueError for
        an unsuitable array.
        """
        array = self._copied(samples)
        await self._wait_for_end()
        step = self._max_unanswered_samples
        for start in range(0, max(1, len(array)), step):
            await self._wait_until(lambda: self._end_samples - self._answers.samples <= step)
            # After the wait: the stream may be over or finished by now.
            self._check_open()
            part = array[start : start + step]
            ready = self._aligner.add(part)
            # No samples go at once: they keep an idle stream open on the server.
            if ready is not None or not len(part):
                self._enqueue_all(NO_SAMPLES if ready is None else ready)

    async def end_segment(self, samples: npt.ArrayLike = (), options: Mapping[str, Any] | None = None) -> None:
        """Ends the segment after what was pushed, and after these samples if given; the stream continues.

        The answer is a final result with `answers_finalize`, also for a segment without speech. Waits while four ends
        are unanswered. options: those of `options.CHANGEABLE` that change from here on. Raises ClientError, and
        ValueError for other options.
        """
        await self.end_with(samples, changes_of(options))

    async def end_with(self, samples: npt.ArrayLike, changes: Mapping[str, Parameter]) -> None:
        """Ends the segment as `end_segment`, with options that are parameters already."""
        await self._flush(samples, changes=changes)
        if self._polls:  # a later row could have the result in its answer
            await self._wait_until(lambda: self.is_answered)

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream after what was pushed, and after these samples if given. Iterate for the last results."""
        await self._flush(samples, is_end=True)

    async def keep_open(self) -> None:
        """Sends no samples, unless a row is on its way or the stream is finished: the server ends none that is idle."""
        if self.is_answered and not (self._is_finished or self.is_over):
            self._enqueue(NO_SAMPLES)

    def end_softly(self) -> bool:
        """Ends the segment after what was pushed as an endpoint does, and does not wait.

        Returns False, and does nothing, where rows are unanswered or the stream is on no server or finished.
        """
        if not self._may_end_softly:
            return False
        self._enqueue_soft_end()
        return True

    @property
    def _may_end_softly(self) -> bool:
        return not (not self.is_answered or self._is_without_server or self.moves.are_under_way or self._is_finished)

    async def change(self, options: Mapping[str, Any]) -> None:
        """Ends the segment softly; from here on the stream has these options (of `options.CHANGEABLE`).

        Waits while four ends are unanswered. Raises ClientError, and ValueError for other options.
        """
        changes = changes_of(options)
        await self._wait_for_end()
        await self._wait_for_ends()
        self._check_open()
        self._enqueue_soft_end(changes)

    def _enqueue_soft_end(self, changes: Mapping[str, Parameter] | None = None, parks: bool = False) -> None:
        self._enqueue_end(NO_SAMPLES, FINALIZE, changes)
        # After the row was made, whose number this is.
        self._soft_ends[self.rows] = parks

    def _enqueue_end(self, samples: Samples, flags: int, changes: Mapping[str, Parameter] | None) -> None:
        self._enqueue_all(self._aligner.flush(samples), flags, changes)
        self._ends.append(self.rows)

    def park(self) -> None:
        """Ends the segment softly, and then gives back the slot until audio is pushed. Does not wait.

        With that audio the stream has lost its server: `on_lost` is called with ServerFullError.
        """
        if self.can_park and self._may_end_softly:
            self._enqueue_soft_end(parks=True)

    async def __aiter__(self) -> AsyncIterator[StreamResult]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while True:
            while self._results:
                yield self._results.popleft()
            if (answer := await self.next_answer()) is None:
                return
            self._results.extend(answer.results)

    async def close(self) -> None:
        """Cancels the stream unless it is over."""
        self.cancel()

    async def __aenter__(self) -> "BatchedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    async def _flush(
        self, samples: npt.ArrayLike, is_end: bool = False, changes: Mapping[str, Parameter] | None = None
    ) -> None:
        array = self._copied(samples)
        if (more := len(array) - self._max_unanswered_samples) > 0:
            # By `push`, which waits: an end takes no more audio with it than may be on its way.
            await self.push(array[:more])
            array = array[more:]
        await self._wait_for_end()
        if not is_end:
            await self._wait_for_ends()
        self._check_open()
        self._is_finished = is_end
        self._enqueue_end(array, END if is_end else FINALIZE, changes)

    async def _wait_for_end(self) -> None:
        """Waits for soft ends of a stream that polls: a later row could have their results in its answer."""
        if self._polls:
            await self._wait_until(lambda: self._answers.rows >= max(self._soft_ends, default=0))

    async def _wait_for_ends(self) -> None:
        """Returns when one more end of a segment may be on its way."""
        await self._wait_until(lambda: len(self._ends) < _MAX_UNANSWERED_ENDS or self._answers.rows >= self._ends[0])

    def _copied(self, samples: npt.ArrayLike) -> Samples:
        """The samples in an array of their own; int16 stays."""
        array = np.asarray(samples)
        is_pcm = array.dtype == np.int16 and array.ndim == 1
        return array.copy() if is_pcm else as_samples(array).copy()

    async def next_answer(self, limit_s: float = math.inf) -> Answer | None:
        """The answer to the next row; None once the stream is complete, or if there is none within the limit.

        Raises ClientError.
        """
        await self._wait_until(lambda: bool(self._answers) or self._is_complete, limit_s)
        return self._answers.next()

    @property
    def is_complete(self) -> bool:
        """True once it is finished and every answer was taken."""
        return self._is_complete and not self._answers

    def _check_open(self) -> None:
        if self.failure:
            raise self.failure
        if self._is_finished:
            raise StreamClosedError(self.stream_id, "the stream is finished and accepts no more audio")
