"""A stream's rows on its server, and its move to another one, which receives the current segment again (`Replay`)."""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock_client.alignment import ChunkGeometry, Samples
from penstock_client.batched.link import Arrival, Link, send_end
from penstock_client.batched.rows import (
    END,
    FINALIZE,
    MOVABLE,
    START,
    Answer,
    Answers,
    OnAnswer,
    Part,
    Pushed,
    StreamResult,
    stream_result,
)
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ServerFullError,
    StreamClosedError,
    StreamNotOpenError,
)
from penstock_client.protocol import SAMPLE_RATE_HZ, Parameter, Result, ResultOrder, ends_stream
from penstock_client.replies import stream_error
from penstock_client.speakers.track import SpeakerTrack
from penstock_client.transport.replay import Replay
from penstock_client.transport.signal import AsyncSignal

_MAX_REPLAYED_SAMPLES = 8 * SAMPLE_RATE_HZ
"""Samples of a moved stream on their way at a time: enough for few round trips, and others are not delayed for long."""
_MAX_FRUITLESS_MOVES = 3
"""Moves in a row without a new result; a stream that exceeds it may itself be what crashes its servers, so it ends. One
more for replies that cannot be read, whatever was answered between them."""
OnLost = Callable[[Any, ClientError], bool]
"""Decides when a server has lost the stream, a `BatchedStream`. True: it will call `move` or `give_up`."""


class ServedStream:
    """A stream as its link and those that move it need it. `BatchedStream` is what its caller has."""

    def __init__(
        self,
        link: Link,
        first: Part,
        on_answer: OnAnswer | None,
        replay: Replay[Part] | None,
        polls: bool,
    ):
        """Arguments are those of `BatchedStream`."""
        self.stream_id = link.next_number()
        self.fingerprint = ""  # of the server's model: the stream moves to no other
        self.on_lost: OnLost = lambda stream, error: False
        self._link = link
        self._replay = replay
        self._polls = polls
        self.track: SpeakerTrack | None = None
        """The speakers of a stream that asks for them. A move ends them: later words have none."""
        self._end_samples = 0
        self.replayed_samples = 0  # sent again in moves
        self._sent_samples = self._answered_samples = self._server_number = 0
        """Sent and answered: by its present server."""
        self._fruitless_moves = self._unreadable_replies = 0
        self._order = ResultOrder()
        """The order of the results from this server."""
        self._backlog: deque[Part] = deque()
        """Parts that wait for those before them, while the stream moves."""
        self._arrival: Arrival | None = None
        """On the server that it moves to."""
        self._is_without_server = self._is_moving = False
        """Whether it is on no server, and whether one of its moves is under way."""
        self._endpoint_rows: set[int] = set()
        self._parking_row = 0
        """The numbers, from 1, of the rows without an answer that end a segment as an endpoint does, and of the one
        after which it leaves the server until audio comes.
        """
        self.is_parked = False
        """True while it has left its server until audio comes."""
        self._move_error: ClientError = StreamClosedError(self.stream_id, "the stream is on no server")
        self._answers = Answers(on_answer)
        self._rows = 0
        self._failure: ClientError | None = None
        self._is_accepted = self._is_ended = self._is_complete = False
        """Ended: the end was sent. Complete: it is answered."""
        self._changed = AsyncSignal()
        """Wakes the tasks that wait for results, for room or for the start."""
        link.add(self)
        self._enqueue(first.audio, first.flags, first.parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """The stream's name in the server's log."""
        return f"{self.stream_id} of client {self._link.client_id!r}"

    @property
    def is_answered(self) -> bool:
        """True while no answer is missing, so that `push` does not wait."""
        return self._answers.rows == self._rows

    @property
    def is_over(self) -> bool:
        """True once it has failed, was closed, or is finished and answered."""
        return self._failure is not None or self._is_complete

    @property
    def is_without_server(self) -> bool:
        """True while it is on no server: `move` or `give_up` has to follow."""
        return self._is_without_server and not self.is_parked and not self.is_over

    @property
    def failure(self) -> ClientError | None:
        """Why the stream has ended early, or None."""
        return self._failure

    @property
    def server_url(self) -> str:
        """The address of its server, or of the last one."""
        return self._link.url

    @property
    def has_results(self) -> bool:
        """True once a stream that may be moved has had a result."""
        return self._replay is not None and self._replay.has_results

    @property
    def restarted_from_s(self) -> float:
        """Begin of the segment that a move sends again."""
        return self._replay.start_s if self._replay is not None else 0.0

    async def settled(self, limit_s: float) -> None:
        """Returns when its server has answered all that was sent, or after the limit."""
        await self._link.settled(self, limit_s)

    async def has_fewer_rows(self, rows: int) -> None:
        """Returns when fewer rows than these are unanswered. Raises ClientError."""
        await self._wait_until(lambda: self._rows - self._answers.rows < rows)

    @property
    def has_words(self) -> bool:
        """True if words of its current segment are told."""
        return self._replay is not None and self._replay.has_words

    def cancel(self) -> None:
        """Ends the stream without its remaining results, and frees its slot on the server. Does not wait.

        Calls to push or iterate raise StreamClosedError, also in other tasks. A stream that is over stays so; its words
        wait for speakers no longer.
        """
        self.fail(StreamClosedError(self.stream_id, "the stream was closed before its last result"))
        if self.track is not None:
            self.track.cancel()

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected. Called by the link."""
        if self._failure or pushed.server_number != self._server_number or self._is_without_server:
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
        samples = pushed.end_samples - self._offset_samples
        is_whole = not flags & (END | FINALIZE) or not self._polls or ends_stream(results, samples)
        flags, last = flags if is_whole else 0, len(results) - 1
        stream_results = [stream_result(one, round_trip_s, flags if i == last else 0) for i, one in enumerate(results)]
        if self._replay is not None:
            stream_results = [one for one in map(self._new_result, stream_results) if one is not None]
        parks = pushed.number + 1 == self._parking_row
        if pushed.number + 1 in self._endpoint_rows:
            stream_results = [replace(one, is_endpoint=one.is_final, answers_finalize=False) for one in stream_results]
        is_new = self._answers.add(pushed.number, Answer(pushed.end_samples, stream_results, is_whole), round_trip_s)
        if is_new and (is_whole or stream_results):
            self._fruitless_moves = 0
        if is_whole:
            self._endpoint_rows.discard(self._answers.rows)
        if flags & END:
            self._is_complete = True
            self._drop_replay()
            self._link.forget(self)
        elif not is_whole:
            self._link.enqueue(pushed.poll())
        elif parks and self.is_answered and not self._is_moving:
            self._leave(is_open=True)
            self._is_without_server = self.is_parked = True
        self._changed.give()

    @property
    def _offset_samples(self) -> int:
        """Begin of its present server's stream in it."""
        return self._replay.offset_samples if self._replay is not None else 0

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """Takes the rejection of a row's whole request; ignored as an answer is. Called by the link."""
        if not (self._failure or pushed.server_number != self._server_number or self._is_without_server):
            self.fail(error, is_open=True)

    def _new_result(self, result: StreamResult) -> StreamResult | None:
        """The result with the times of the whole stream, or None where it is told already."""
        assert self._replay is not None
        taken = self._replay.new_result(result)
        if taken is None or taken is result or not taken.is_final:
            return taken
        return replace(taken, end_s=taken.audio_processed_s)

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Ends the stream with an error, after the results before it; nothing where it is over already.

        Its end is sent where the server may hold it open: `is_open`; None stands for "unless its end was sent".
        """
        if self._failure or self._is_complete:
            return
        if not self._is_without_server:
            self._leave(is_open)
        self._is_without_server = True
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
        send_end(self, self._link, begins_work=self._polls and bool(not self._is_ended or unsent & END))

    async def move(self, link: Link, geometry: ChunkGeometry | None) -> None:
        """Goes on at another server of the same model, which receives the current segment again. One call at a time.

        geometry: of the model's chunks. The server that has the stream keeps it until the other one has answered the
        segment; a stream on no server goes to the other one at once. Raises ClientError where that does not accept it,
        or loses it before it has answered: the stream is then where it was, or waits for another call on no server.
        """
        if self._replay is None:
            raise StreamClosedError(self.stream_id, "the stream is over, or was not opened to be moved")
        self._is_moving = True
        try:
            await self._go_to(link, self._replay, geometry)
        finally:
            self._is_moving = False

    async def _go_to(self, link: Link, replay: Replay[Part], geometry: ChunkGeometry | None) -> None:
        arrival, answers = await self._arrived(link, replay, geometry)
        if not self._is_without_server:
            self._leave(is_open=None)
        link.forget(arrival)
        self.stream_id, self._link = arrival.stream_id, link
        self._server_number += 1
        self._fruitless_moves += 1
        self._sent_samples, self._answered_samples, self._is_ended, self._is_without_server = 0, 0, False, False
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
        if self._is_without_server:
            raise self._move_error

    async def _arrived(
        self, link: Link, replay: Replay[Part], geometry: ChunkGeometry | None
    ) -> tuple[Arrival, list[Sequence[Result]]]:
        """The stream on the other server. If this one still has it, with the answers to what it receives again.

        So no result is late: only what comes meanwhile has still to be sent.
        """
        while True:
            self._check_whole(replay, geometry)
            parameters, parts = _repeated(replay, geometry)
            repeated = [] if self._is_without_server else _told(parts, replay.segment_start_samples)
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
        await self._wait_until(lambda: self._is_without_server or self._answered_samples >= samples)

    def _check_whole(self, replay: Replay[Part], geometry: ChunkGeometry | None) -> None:
        if self.is_over or not replay.is_whole(geometry):
            message = "the stream is over, or too long since its last border, and cannot be moved"
            raise self._failure or StreamClosedError(self.stream_id, message)

    def _enqueue(self, samples: Samples, flags: int = 0, parameters: Mapping[str, Parameter] | None = None) -> None:
        self._end_samples += len(samples)
        part = Part(samples, flags, self._end_samples, self._rows, parameters or {})
        self._rows += 1
        if self.is_parked and not len(samples) and not parameters:
            self._answer_parked(part)
            return
        if self._replay is not None:
            self._replay.add(part)
        if self.is_parked:
            self.fail(ServerFullError(self.stream_id, "no server has a slot for the stream, which was idle"))
            self.is_parked = False
        elif self._backlog:
            self._backlog.append(part)
        elif not self._is_without_server:
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
        return Pushed(self, row, part.end_samples, self._link.now_s(), part.number, self._server_number)

    async def _wait_until(self, is_met: Callable[[], bool], limit_s: float = math.inf) -> None:
        """Returns when `is_met`, or after the limit. Raises the stream's failure if it comes first."""
        deadline_s = time.monotonic() + limit_s
        while not is_met():
            if self._failure:
                raise self._failure
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return
            await self._changed.wait(left_s)


def _repeated(replay: Replay[Part], geometry: ChunkGeometry | None) -> tuple[Mapping[str, Parameter], list[Part]]:
    """The parameters of a start on another server, and what that has to receive after it."""
    parts = replay.requests(geometry)
    if not parts:
        return replay.parameters, []
    return parts[0].parameters, [parts[0].again(parts[0].samples), *parts[1:]]


def _told(parts: Sequence[Part], samples: int) -> list[Part]:
    """Parts before the first one that ends a segment after more than `samples` samples."""
    return list(itertools.takewhile(lambda part: not part.is_final or part.end_samples <= samples, parts))


def _begins_with(parts: Sequence[Part], first: Sequence[Part]) -> bool:
    return [(part.number, part.samples) for part in parts[: len(first)]] == [
        (part.number, part.samples) for part in first
    ]
