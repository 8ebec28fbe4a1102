"""One audio stream of a `BatchedClient`: push samples, receive results. Its link sends and receives for it."""

from collections import deque
from collections.abc import AsyncIterator, Mapping

import numpy as np
import numpy.typing as npt

from penstock_client.alignment import ChunkAligner, ChunkGeometry, Samples
from penstock_client.batched.link import Link
from penstock_client.batched.rows import END, FINALIZE, NO_SAMPLES, Answer, OnAnswer, Part, StreamResult
from penstock_client.batched.served import ServedStream
from penstock_client.errors import StreamClosedError
from penstock_client.protocol import Parameter, as_samples
from penstock_client.transport.replay import Replay


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
        is_empty: bool = False,
        replay: Replay[Part] | None = None,
        polls: bool = False,
    ):
        """is_empty: its first row is its last one; replay: of a stream that may be moved; polls: an offline model's."""
        super().__init__(link, parameters, on_answer, is_empty, replay, polls)
        self._aligner = ChunkAligner(geometry)
        self._max_unanswered_samples = max_unanswered_samples
        self._results: deque[StreamResult] = deque()
        """The remaining results of the answer that is being iterated."""
        self._placing: tuple[Answer, float, list[StreamResult]] | None = None
        """The answer that waits for its speakers, when it has come, and its results that have them."""
        self._is_finished = is_empty
        """No more audio comes."""

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was pushed that complete no chunk, and wait here for those that do."""
        return self._aligner.held_samples

    @property
    def rows(self) -> int:
        """Rows of the stream so far: `answers` yields as many, unless the stream fails."""
        return self._rows

    @property
    def can_park(self) -> bool:
        """True for a stream that may be moved."""
        return self._replay is not None and bool(self.fingerprint)

    @property
    def replay_samples(self) -> int:
        """Samples that are kept for a move."""
        return self._replay.held_samples if self._replay is not None else 0

    async def accepted(self) -> None:
        """Returns once the server has accepted the stream. Raises ClientError if it does not."""
        await self._wait_until(lambda: self._is_accepted)

    async def push(self, samples: npt.ArrayLike) -> None:
        """Takes mono audio [n] at the model's rate, floats in -1 .. 1 or int16, and copies it.

        Whole chunks are sent with the next request; no samples are sent at once, which keeps an idle stream open. Waits
        while more than the client's `max_unanswered_s` of audio is unanswered. Raises ClientError, and ValueError for
        an unsuitable array.
        """
        array = self._copied(samples)
        step = self._max_unanswered_samples
        for start in range(0, max(1, len(array)), step):
            await self._wait_until(lambda: self._end_samples - self._answers.samples <= step)
            self._check_open()
            part = array[start : start + step]
            ready = self._aligner.add(part)
            if ready is not None or not len(part):
                self._enqueue(NO_SAMPLES if ready is None else ready)
            if self.track is not None:
                await self.track.send(as_samples(part))

    async def end_segment(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the segment after what was pushed, and after these samples if given; the stream continues.

        The answer is a final result with `answers_finalize`, also for a segment without speech. Raises ClientError.
        """
        await self._flush(samples)
        if self._polls:  # a later row could have the result in its answer
            await self._wait_until(lambda: self.is_answered)

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream after what was pushed, and after these samples if given. Iterate for the last results."""
        await self._flush(samples, is_end=True)

    async def keep_open(self) -> None:
        """Sends no samples, unless a row is on its way or the stream is finished: the server ends none that is idle."""
        if self.is_answered and not (self._is_finished or self.is_over):
            self._enqueue(NO_SAMPLES)

    def park(self) -> None:
        """Ends the segment as an endpoint does, and then gives back the slot until audio is pushed. Does not wait.

        With that audio the stream has lost its server: `on_lost` is called with ServerFullError. Nothing happens where
        rows are unanswered or the stream is on no server.
        """
        if self.can_park and self.is_answered and not (self._is_without_server or self._is_moving or self._is_finished):
            self._parking_row = self._rows + 1
            self._enqueue(self._aligner.flush(NO_SAMPLES), FINALIZE)

    async def __aiter__(self) -> AsyncIterator[StreamResult]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while True:
            while self._results:
                yield self._results.popleft()
            if (answer := await self._next_answer()) is None:
                return
            self._results.extend(answer.results)

    async def answers(self) -> AsyncIterator[Answer]:
        """The answer to each row, also to one without a result: instead of iterating. Raises ClientError."""
        while (answer := await self._next_answer()) is not None:
            yield answer

    async def close(self) -> None:
        """Cancels the stream unless it is over."""
        self.cancel()

    async def __aenter__(self) -> "BatchedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    async def _flush(self, samples: npt.ArrayLike, is_end: bool = False) -> None:
        array = self._copied(samples)
        if (more := len(array) - self._max_unanswered_samples) > 0:
            await self.push(array[:more])
            array = array[more:]
        self._check_open()
        self._is_finished = is_end
        self._enqueue(self._aligner.flush(array), END if is_end else FINALIZE)
        if self.track is None:
            return
        try:
            await self.track.send(as_samples(array))
        finally:
            if is_end:
                self.track.finish()

    def _copied(self, samples: npt.ArrayLike) -> Samples:
        """The samples in an array of their own; int16 stays."""
        array = np.asarray(samples)
        is_pcm = array.dtype == np.int16 and array.ndim == 1
        return array.copy() if is_pcm else as_samples(array).copy()

    async def _next_answer(self) -> Answer | None:
        """None once the stream is complete."""
        if self._placing is None:
            has_waited = bool(self._answers)
            await self._wait_until(lambda: bool(self._answers) or self._is_complete)
            answer = self._answers.next()
            if answer is None or self.track is None:
                return answer
            self._placing = answer, self.track.came_s(has_waited), []
        assert self.track is not None
        answer, came_s, placed = self._placing
        while len(placed) < len(answer.results):
            placed.append(await self.track.placed(answer.results[len(placed)], came_s))
        self._placing = None
        return answer._replace(results=placed)

    def _check_open(self) -> None:
        if self._failure:
            raise self._failure
        if self._is_finished:
            raise StreamClosedError(self.stream_id, "the stream is finished and accepts no more audio")
