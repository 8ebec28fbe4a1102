"""One audio stream of a `BatchedClient`: push samples, receive results. Its link sends and receives for it.

It moves to another server by `move`: that one receives the current segment again (`Replay`).
"""

import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock_client.alignment import ChunkAligner, ChunkGeometry, Samples
from penstock_client.batched.results import Answer, Answers, OnAnswer, StreamResult, stream_result
from penstock_client.batched.rows import MOVABLE, NO_SAMPLES, Arrival, Part, Pushed, RowSender
from penstock_client.batched.wire import END, FINALIZE, START, Row
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ServerFullError,
    StreamClosedError,
    StreamNotOpenError,
)
from penstock_client.protocol import SAMPLE_RATE_HZ, Parameter, Result, ResultOrder, as_samples, ends_stream
from penstock_client.replies import stream_error
from penstock_client.speakers.track import SpeakerTrack
from penstock_client.transport.async_channel import AsyncSignal
from penstock_client.transport.replay import Replay

_MAX_REPLAYED_SAMPLES = 8 * SAMPLE_RATE_HZ
"""Of a moved stream, on their way at a time: enough for few round trips, and others are not delayed for long."""
_MAX_FRUITLESS_MOVES = 3
"""Without a new answer between them: after these, the stream itself may be what ends the servers. With one after each
reply that cannot be read, however much was answered between them."""


OnLost = Callable[["BatchedStream", ClientError], bool]
"""Decides when a server has lost the stream. True: it will call `move` or `give_up`."""


class BatchedStream:
    """A stream opened by a `BatchedClient`. One task may push while another iterates.

    Use it as an async context manager, or close it, so that its slot on the server becomes free.
    """

    def __init__(
        self,
        link: RowSender,
        parameters: Mapping[str, Parameter],
        geometry: ChunkGeometry | None,
        max_unanswered_samples: int,
        on_answer: OnAnswer | None = None,
        is_empty: bool = False,
        replay: Replay[Part] | None = None,
        polls: bool = False,
    ):
        """is_empty: its first row is its last one; replay: of a stream that may be moved; polls: an offline model's."""
        self.stream_id = link.next_number()
        self.fingerprint = ""  # of the server's model: the stream moves to no other
        self.on_lost: OnLost = lambda stream, error: False
        self._link = link
        self._aligner = ChunkAligner(geometry)
        self._max_unanswered_samples = max_unanswered_samples
        self._replay = replay
        self._polls = polls
        self.track: SpeakerTrack | None = None
        """Of a stream with speakers. It does not move: `Server.take` ends it, and words after that have none."""
        self._end_samples = 0
        self.replayed_samples = 0  # sent again in moves
        self._sent_samples = self._answered_samples = self._visit = 0
        """Sent and answered: on this visit of a server."""
        self._fruitless_moves = self._unreadable_replies = 0
        self._order = ResultOrder()
        """Of the results on this visit."""
        self._backlog: deque[Part] = deque()
        """Parts that wait for those before them, while the stream moves."""
        self._arrival: Arrival | None = None
        """On the server that it moves to."""
        self._is_adrift = self._is_moving = False
        """Adrift: on no server."""
        self._parking_row = 0
        """The number of the row after whose answer it leaves its server until audio comes."""
        self.is_parked = False
        """True while it has left its server until audio comes."""
        self._move_error: ClientError = StreamClosedError(self.stream_id, "the stream is on no server")
        self._answers = Answers(on_answer)
        self._results: deque[StreamResult] = deque()
        """Of the answer that is being iterated."""
        self._placing: tuple[Answer, float, list[StreamResult]] | None = None
        """The answer that waits for its speakers, when it has come, and its results that have them."""
        self._rows = 0
        self._failure: ClientError | None = None
        self._is_accepted = self._is_finished = self._is_ended = self._is_complete = False
        """Finished: no more audio comes. Ended: the end was sent. Complete: it is answered."""
        self._changed = AsyncSignal()
        """Wakes the tasks that wait for results, for room or for the start."""
        self._is_finished = is_empty
        link.add(self)
        self._enqueue(NO_SAMPLES, START | END if is_empty else START, parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

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
        """True while no answer is missing, so that `push` does not wait."""
        return self._answers.rows == self._rows

    @property
    def is_over(self) -> bool:
        """True once it has failed, was closed, or is finished and answered."""
        return self._failure is not None or self._is_complete

    @property
    def is_adrift(self) -> bool:
        """True while it is on no server: `move` or `give_up` has to follow."""
        return self._is_adrift and not self.is_parked and not self.is_over

    @property
    def can_park(self) -> bool:
        """True for a stream that may be moved."""
        return self._replay is not None and bool(self.fingerprint)

    @property
    def has_words(self) -> bool:
        """True if words of its current segment are told."""
        return self._replay is not None and self._replay.has_words

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

    def park(self) -> None:
        """Ends the segment as an endpoint does, and then gives back the slot until audio is pushed. Does not wait.

        With that audio the stream has lost its server: `on_lost` is called with ServerFullError. Nothing happens where
        rows are unanswered or the stream is on no server.
        """
        if self.can_park and self.is_answered and not (self._is_adrift or self._is_moving or self._is_finished):
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

    def cancel(self) -> None:
        """Ends the stream without its remaining results, and frees its slot on the server. Does not wait.

        Calls to push or iterate raise StreamClosedError, also in other tasks. A stream that is over stays so; its words
        wait for speakers no longer.
        """
        self.fail(StreamClosedError(self.stream_id, "the stream was closed before its last result"))
        if self.track is not None:
            self.track.cancel()

    async def close(self) -> None:
        """Cancels the stream unless it is over."""
        self.cancel()

    async def __aenter__(self) -> "BatchedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected. Called by the link."""
        if self._failure or pushed.visit != self._visit or self._is_adrift:
            return  # also where it comes late, from a server that the stream has left
        self._answered_samples += len(pushed.row.samples)
        flags = pushed.flags
        if error is not None:
            failure = stream_error(self.stream_id, error)
            is_closed = flags & (START | END) or isinstance(failure, StreamNotOpenError)
            self.fail(failure, is_open=False if is_closed else None)
            return
        if (problem := self._order.problem(results, self._end_samples - self._offset_samples)) is not None:
            self.fail(ProtocolError(self.stream_id, problem))
            return
        self._is_accepted = True
        round_trip_s = self._link.now_s() - pushed.pushed_s
        is_whole = not flags & (END | FINALIZE) or not self._polls or self._ends(results, pushed.end_samples)
        flags, last = flags if is_whole else 0, len(results) - 1
        stream_results = [stream_result(one, round_trip_s, flags if i == last else 0) for i, one in enumerate(results)]
        if self._replay is not None:
            stream_results = [one for one in map(self._take, stream_results) if one is not None]
        parks = pushed.number + 1 == self._parking_row
        if parks:
            stream_results = [replace(one, is_endpoint=one.is_final, answers_finalize=False) for one in stream_results]
        is_new = self._answers.add(pushed.number, Answer(pushed.end_samples, stream_results, is_whole), round_trip_s)
        if is_new and (is_whole or stream_results):
            self._fruitless_moves = 0
        if flags & END:
            self._is_complete = True
            self._drop_replay()
            self._link.forget(self)
        elif not is_whole:
            self._link.enqueue(pushed.poll())
        elif parks and self.is_answered and not self._is_moving:
            self._leave(is_open=True)
            self._is_adrift = self.is_parked = True
        self._changed.give()

    def _ends(self, results: Sequence[Result], samples: int) -> bool:
        """True for the last results of these samples of an offline model's stream, on its present server."""
        return ends_stream(results, samples - self._offset_samples)

    @property
    def _offset_samples(self) -> int:
        """Where the stream of its present server begins in it."""
        return self._replay.offset_samples if self._replay is not None else 0

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """Takes the rejection of a row's whole request; ignored as an answer is. Called by the link."""
        if not (self._failure or pushed.visit != self._visit or self._is_adrift):
            self.fail(error, is_open=True)

    def _take(self, result: StreamResult) -> StreamResult | None:
        """The result with the times of the whole stream, or None where it is told already."""
        assert self._replay is not None
        taken = self._replay.take(result)
        if taken is None or taken is result or not taken.is_final:
            return taken
        return replace(taken, end_s=taken.audio_processed_s)

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Ends the stream with an error, after the results before it; nothing where it is over already.

        Its end is sent where the server may hold it open: `is_open`; None stands for "unless its end was sent".
        """
        if self._failure or self._is_complete:
            return
        if not self._is_adrift:
            self._leave(is_open)
        self._is_adrift = True
        self._backlog.clear()
        if error.code not in MOVABLE or not self._may_move(error):
            self._failure = error
            self._drop_replay()
            if self.track is not None:
                self.track.cancel()
        self._changed.give()

    def _drop_replay(self) -> None:
        """The stream is over: it moves no more."""
        self._replay = None
        if self._arrival is not None:
            self._arrival.cancel()

    def give_up(self, error: ClientError) -> None:
        """Fails the stream for good."""
        self.on_lost = lambda stream, error: False
        self._is_moving = False
        self.fail(error)

    def _may_move(self, error: ClientError) -> bool:
        """Leaves the stream to those that move it, if there are any."""
        self._unreadable_replies += error.code == ProtocolError.code
        moves = max(self._fruitless_moves, self._unreadable_replies - 1)
        if self._replay is None or moves >= _MAX_FRUITLESS_MOVES:
            return False
        if self._is_moving:
            self._move_error = error
            return True
        return self.on_lost(self, error)

    def _leave(self, is_open: bool | None) -> None:
        """Leaves its server; its end is sent there as `fail` says."""
        unsent = self._link.forget(self)
        if is_open is None:  # that of an offline model is, until its last result
            is_open = self._polls or not self._is_ended or bool(unsent & END)
        if not is_open or unsent & START:
            return
        row = Row(self.stream_id, NO_SAMPLES, END)
        begins_work = self._polls and (not self._is_ended or unsent & END)
        for _ in range(2 if begins_work else 1):  # a second end drops the work that the first one begins
            self._link.enqueue(Pushed(self, row, self._end_samples, self._link.now_s(), visit=-1))

    async def move(self, link: RowSender, geometry: ChunkGeometry | None) -> None:
        """Goes on at another server of the same model, which receives the current segment again. One call at a time.

        geometry: of the model's chunks. The server that has the stream keeps it until the other one has answered the
        segment; one that is adrift goes to the other one at once. Raises ClientError where that does not accept it, or
        loses it before it has answered: the stream is then where it was, or waits for another call on no server.
        """
        if self._replay is None:
            raise StreamClosedError(self.stream_id, "the stream is over, or was not opened to be moved")
        self._is_moving = True
        try:
            await self._go_to(link, self._replay, geometry)
        finally:
            self._is_moving = False

    async def _go_to(self, link: RowSender, replay: Replay[Part], geometry: ChunkGeometry | None) -> None:
        arrival, answers = await self._arrived(link, replay, geometry)
        if not self._is_adrift:
            self._leave(is_open=None)
        link.forget(arrival)
        self.stream_id, self._link = arrival.stream_id, link
        self._visit += 1
        self._fruitless_moves += 1
        self._sent_samples, self._answered_samples, self._is_ended, self._is_adrift = 0, 0, False, False
        self._order = ResultOrder()
        replay.restart(geometry)
        self._backlog = deque(_repeated(replay, geometry)[1])
        repeated_samples = sum(part.samples for part in self._backlog)
        self.replayed_samples += repeated_samples
        link.add(self)
        for results in answers:
            if self._backlog:  # else one of them could not be
                self.answer(self._pushed(self._backlog.popleft()), results, None)
        while self._backlog:
            self._send(self._backlog.popleft())
            await self._wait_for_answers(self._sent_samples - _MAX_REPLAYED_SAMPLES)
        await self._wait_for_answers(repeated_samples)
        if self._is_adrift:
            raise self._move_error

    async def _arrived(
        self, link: RowSender, replay: Replay[Part], geometry: ChunkGeometry | None
    ) -> tuple[Arrival, list[Sequence[Result]]]:
        """The stream on the other server. If this one still has it, with the answers to what it receives again.

        So no result is late: only what comes meanwhile has still to be sent.
        """
        while True:
            self._check_whole(replay, geometry)
            parameters, parts = _repeated(replay, geometry)
            repeated = [] if self._is_adrift else _told(parts, replay.segment_start_samples)
            arrival = self._arrival = Arrival(link, parameters, self._polls)
            try:
                answers = await arrival.catch_up(repeated, _MAX_REPLAYED_SAMPLES)
                self._check_whole(replay, geometry)
                if link.is_lost:
                    raise ConnectionLostError(self.stream_id, "lost the connection to the other server")
                same_parameters, same_parts = _repeated(replay, geometry)
                if same_parameters == parameters and _begins_with(same_parts, repeated):
                    return arrival, answers
            except BaseException:
                arrival.cancel()
                raise
            finally:
                self._arrival = None
            arrival.cancel()  # a segment has ended meanwhile

    async def _wait_for_answers(self, samples: int) -> None:
        """Returns when this server has answered this number of samples, or has lost the stream."""
        await self._wait_until(lambda: self._is_adrift or self._answered_samples >= samples)

    def _check_whole(self, replay: Replay[Part], geometry: ChunkGeometry | None) -> None:
        if self.is_over or not replay.is_whole(geometry):
            message = "the stream is over, or too long since its last border, and cannot be moved"
            raise self._failure or StreamClosedError(self.stream_id, message)

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

    def _enqueue(self, samples: Samples, flags: int = 0, parameters: Mapping[str, Parameter] | None = None) -> None:
        self._end_samples += len(samples)
        part = Part(samples, flags, self._end_samples, self._rows, parameters or {})
        self._rows += 1
        if self.is_parked and not len(samples):
            self._answer_parked(part)
            return
        if self._replay is not None:
            self._replay.add(part)
        if self.is_parked:
            self.fail(ServerFullError(self.stream_id, "no server has a slot for the stream, which was idle"))
            self.is_parked = False
        elif self._backlog:
            self._backlog.append(part)
        elif not self._is_adrift:
            self._send(part)

    def _answer_parked(self, part: Part) -> None:
        """Answers a row without samples while the stream is on no server: its segment is empty."""
        assert self._replay is not None
        results, end_s = [], part.end_samples / SAMPLE_RATE_HZ
        if part.is_final:
            empty = Result(self._replay.skip_segment(), "", True, end_s, (), (), ())
            results = [replace(stream_result(empty, 0.0, part.flags), end_s=end_s)]
        self._answers.add(part.number, Answer(part.end_samples, results), 0.0)
        if part.is_end:
            self._is_complete = True
            self._drop_replay()
        self._changed.give()

    def _send(self, part: Part) -> None:
        self._link.enqueue(self._pushed(part))

    def _pushed(self, part: Part) -> Pushed:
        """The part on its way to this server."""
        self._sent_samples += part.samples
        self._is_ended |= part.is_end
        row = part.row(self.stream_id)
        return Pushed(self, row, part.end_samples, self._link.now_s(), part.number, self._visit)

    async def _next_answer(self) -> Answer | None:
        """None once the stream is complete."""
        if self._placing is None:
            has_waited = bool(self._answers)
            await self._wait_until(lambda: bool(self._answers) or self._is_complete)
            answer = self._answers.take()
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

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        """Raises the stream's failure if it comes first."""
        while not is_met():
            if self._failure:
                raise self._failure
            await self._changed.wait(math.inf)


def _repeated(replay: Replay[Part], geometry: ChunkGeometry | None) -> tuple[Mapping[str, Parameter], list[Part]]:
    """The parameters of a start on another server, and what that has to receive after it."""
    parts = replay.requests(geometry)
    if not parts:
        return replay.parameters, []
    return parts[0].parameters, [parts[0].again(parts[0].samples), *parts[1:]]


def _told(parts: Sequence[Part], samples: int) -> list[Part]:
    """Those before the first one that ends a segment after more than `samples` samples."""
    return list(itertools.takewhile(lambda part: not part.is_final or part.end_samples <= samples, parts))


def _begins_with(parts: Sequence[Part], first: Sequence[Part]) -> bool:
    return [(part.number, part.samples) for part in parts[: len(first)]] == [
        (part.number, part.samples) for part in first
    ]
