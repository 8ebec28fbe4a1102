"""One audio stream of a `BatchedClient`: push samples, receive results. Its link sends and receives for it."""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock_client.alignment import ChunkAligner, ChunkGeometry, Samples
from penstock_client.batched.wire import END, FINALIZE, START, Row
from penstock_client.errors import ClientError, StreamClosedError, StreamNotOpenError
from penstock_client.protocol import Result, as_samples, stream_error
from penstock_client.transport.async_channel import AsyncSignal

_NO_SAMPLES: Samples = np.empty(0, np.int16)


@dataclass(frozen=True, slots=True)
class StreamResult(Result):
    """News of a stream, and the reason why its segment ended."""

    answers_finalize: bool = False
    """True for the final result of a segment that `end_segment` ended."""
    is_last: bool = False
    """True for the stream's last result."""
    end_s: float = 0.0
    """Of a final result: where its segment ends in the stream and the next one begins."""


class Answer(NamedTuple):
    """The server's answer to one row of a stream."""

    end_samples: int
    """Samples of the stream up to the row's end."""
    results: Sequence[StreamResult]
    """News, in order; empty if there are none."""


class Pushed(NamedTuple):
    """A row on its way to the server and back."""

    stream: "BatchedStream"
    row: Row
    end_samples: int
    """Samples of the stream up to the row's end."""
    pushed_s: float
    """Time at which its last sample was pushed, by the link's clock."""


class RowSender(Protocol):
    """The link, as a stream needs it."""

    client_id: str
    """Names the link to the server."""

    def now_s(self) -> float:
        """The clock of all times."""

    def enqueue(self, pushed: Pushed) -> None:
        """Sends the row with the next request."""

    def forget(self, stream: "BatchedStream") -> int:
        """Drops the stream and its unsent rows; returns all flags of these."""


OnAnswer = Callable[[int, float], object]
"""Receives the samples of a stream that are answered so far, and the seconds from their push to the answer."""


class BatchedStream:
    """A stream opened by a `BatchedClient`. One task may push while another iterates.

    Use it as an async context manager, or close it, so that its slot on the server becomes free.
    """

    def __init__(
        self,
        number: int,
        link: RowSender,
        options: str,
        geometry: ChunkGeometry | None,
        max_unanswered_samples: int,
        on_answer: OnAnswer | None = None,
    ):
        self.stream_id = number
        self._link = link
        self._aligner = ChunkAligner(geometry)
        self._max_unanswered_samples = max_unanswered_samples
        self._on_answer = on_answer
        self._end_samples = self._unanswered_samples = self._unanswered_rows = 0
        """Of the rows that were enqueued."""
        self._answers: deque[Answer] = deque()
        self._results: deque[StreamResult] = deque()
        """Of the answer that is being iterated."""
        self._rows = 0
        self._failure: ClientError | None = None
        self._is_accepted = self._is_finished = self._is_ended = self._is_complete = False
        """Finished: no more audio comes. Ended: the end was enqueued. Complete: it is answered."""
        self._changed = AsyncSignal()
        """Wakes the tasks that wait for results, for room or for the start."""
        self._enqueue(_NO_SAMPLES, START, options)

    @property
    def name(self) -> str:
        """The stream's name in the server's log."""
        return f"{self.stream_id} of client {self._link.client_id!r}"

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was pushed that complete no chunk, and wait here for those that do."""
        return self._aligner.held_samples

    @property
    def rows(self) -> int:
        """Rows of the stream so far: `answers` yields as many, unless the stream fails."""
        return self._rows

    @property
    def is_answered(self) -> bool:
        """True while the server owes no answer, so that `push` does not wait."""
        return not self._unanswered_rows

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
            await self._wait_until(lambda: self._unanswered_samples <= step)
            self._check_open()
            part = array[start : start + step]
            ready = self._aligner.add(part)
            if ready is not None or not len(part):
                self._enqueue(_NO_SAMPLES if ready is None else ready)

    async def end_segment(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the segment after the samples pushed so far, and after these if given; the stream continues.

        The answer is a final result with `answers_finalize`, also for a segment without speech. Raises ClientError.
        """
        await self._flush(samples)

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream after the samples pushed so far, and after these if given. Iterate for the last results."""
        await self._flush(samples, is_end=True)

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

    def cancel(self) -> None:
        """Ends the stream without its remaining results, and frees its slot on the server. Does not wait.

        Calls to push or iterate raise StreamClosedError, also in other tasks. Does nothing to a stream that is over.
        """
        self.fail(StreamClosedError(self.stream_id, "the stream was closed before its last result"))

    async def close(self) -> None:
        """Cancels the stream unless it is over."""
        self.cancel()

    async def __aenter__(self) -> "BatchedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected. Called by the link."""
        self._unanswered_samples -= len(pushed.row.samples)
        self._unanswered_rows -= 1
        if self._failure:
            return
        flags = pushed.row.flags
        if error is not None:
            failure = stream_error(self.stream_id, error)
            is_closed = flags & (START | END) or isinstance(failure, StreamNotOpenError)
            self.fail(failure, is_open=False if is_closed else None)
            return
        self._is_accepted = True
        round_trip_s = self._link.now_s() - pushed.pushed_s
        last = len(results) - 1
        found = [_stream_result(one, round_trip_s, flags if i == last else 0) for i, one in enumerate(results)]
        self._answers.append(Answer(pushed.end_samples, found))
        if self._on_answer is not None:
            self._on_answer(pushed.end_samples, round_trip_s)
        if flags & END:
            self._is_complete = True
            self._link.forget(self)
        self._changed.give()

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Ends the stream with an error, after the results before it; nothing where it is over already.

        Its end is sent where the server may hold it open: `is_open`; None stands for "unless its end was sent".
        """
        if self._failure or self._is_complete:
            return
        self._failure = error
        unsent = self._link.forget(self)
        if is_open is None:
            is_open = not self._is_ended or bool(unsent & END)
        if is_open and not unsent & START:
            self._enqueue(_NO_SAMPLES, END)
        self._changed.give()

    async def _flush(self, samples: npt.ArrayLike, is_end: bool = False) -> None:
        array = self._copied(samples)
        if (more := len(array) - self._max_unanswered_samples) > 0:
            await self.push(array[:more])
            array = array[more:]
        self._check_open()
        self._is_finished = is_end
        self._enqueue(self._aligner.flush(array), END if is_end else FINALIZE)

    def _copied(self, samples: npt.ArrayLike) -> Samples:
        """The samples in an array of their own; int16 stays."""
        array = np.asarray(samples)
        is_pcm = array.dtype == np.int16 and array.ndim == 1
        return array.copy() if is_pcm else as_samples(array).copy()

    def _enqueue(self, samples: Samples, flags: int = 0, options: str | None = None) -> None:
        self._end_samples += len(samples)
        self._unanswered_samples += len(samples)
        self._unanswered_rows += 1
        self._rows += 1
        self._is_ended |= bool(flags & END)
        row = Row(self.stream_id, samples, flags, options)
        self._link.enqueue(Pushed(self, row, self._end_samples, self._link.now_s()))

    async def _next_answer(self) -> Answer | None:
        """None once the stream is complete."""
        await self._wait_until(lambda: bool(self._answers) or self._is_complete)
        return self._answers.popleft() if self._answers else None

    def _check_open(self) -> None:
        if self._failure:
            raise self._failure
        if self._is_finished:
            raise StreamClosedError(self.stream_id, "the stream is finished and accepts no more audio")

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        """Raises the stream's failure if it comes first."""
        while not is_met():
            if self._failure:
                raise self._failure
            await self._changed.wait(math.inf)


def _stream_result(result: Result, round_trip_s: float, flags: int) -> StreamResult:
    """The result with its round trip; `flags` are those of a row whose newest result it is. `dataclasses.replace` and
    `asdict` would take several times as long.
    """
    return StreamResult(
        result.segment,
        result.text,
        result.is_final,
        result.audio_processed_s,
        result.new_words,
        result.new_tokens,
        result.new_timestamps,
        result.alternatives,
        result.language,
        round_trip_s,
        result.stable_chars,
        result.is_final and not flags & (FINALIZE | END),
        answers_finalize=bool(flags & FINALIZE),
        is_last=bool(flags & END),
        end_s=result.audio_processed_s if result.is_final else 0.0,
    )
