"""A stream's rows on its server, and its move to another one, which receives the current segment again (`Replay`)."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock_client import limits
from penstock_client.alignment import ChunkAligner, ChunkGeometry, Samples
from penstock_client.batched.link import Arrival, Link, send_end
from penstock_client.batched.moving import OnServer, StreamMoves, begins_with, repeated, reported
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import (
    END,
    FINALIZE,
    MOVABLE,
    NO_SAMPLES,
    START,
    Answer,
    Answers,
    OnAnswer,
    Part,
    Pushed,
    StreamResult,
    stream_result,
)
from penstock_client.batched.signal import AsyncSignal
from penstock_client.protocol import MAX_REQUEST_SAMPLES, ends_stream
from penstock_client.replies import stream_error
from penstock_common.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ServerFullError,
    StreamClosedError,
    StreamNotOpenError,
)
from penstock_common.options import Parameter, without_speakers
from penstock_common.results import Result
from penstock_common.samples import SAMPLE_RATE_HZ

_MAX_REPEATED_SAMPLES = round(limits.MAX_REPEATED_S * SAMPLE_RATE_HZ)
_LOST = "STREAM_LOST"
"""The code of the server's error after a process of its models has ended: with speakers, most often theirs."""
OnLost = Callable[[Any, ClientError], bool]
"""Decides when a server has lost the stream, a `BatchedStream`. True: it will call `move` or `give_up`."""


class ServedStream:
    """A stream as its link and those that move it need it. `BatchedStream` is what its caller has."""

    def __init__(
        self,
        link: Link,
        parameters: Mapping[str, Parameter],
        geometry: ChunkGeometry | None,
        on_answer: OnAnswer | None,
        replay: Replay | None,
        polls: bool,
    ):
        """Arguments are those of `BatchedStream`."""
        self.fingerprint = ""  # of the server's model: the stream moves to no other
        self.on_lost: OnLost = lambda stream, error: False
        self._at = OnServer(link, link.next_number())
        self.moves = StreamMoves(self._at.stream_id)
        self.parameters = parameters
        self._aligner = ChunkAligner(geometry)
        self._replay = replay
        self._polls = polls
        self.has_speakers = False
        """True for a stream that asks for speakers, until it goes on without them."""
        self._end_samples = self.rows = 0
        """Samples and rows of the stream so far: it gets as many answers as rows, unless it fails."""
        self._is_without_server = False
        self.is_parked = False
        """True while it has left its server until audio comes."""
        self._soft_ends: dict[int, bool] = {}
        """The numbers, from 1, of the rows without an answer that end a segment as an endpoint does; True for one after
        which the stream leaves its server until audio comes."""
        self._answers = Answers(on_answer)
        self.failure: ClientError | None = None
        """Why the stream has ended early."""
        self._is_complete = False
        """True once its end is answered."""
        self._changed = AsyncSignal()
        """Wakes the tasks that wait for results, for room or for the start."""
        link.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def stream_id(self) -> int:
        """The stream's number on its link."""
        return self._at.stream_id

    @property
    def name(self) -> str:
        """The stream's name in the server's log."""
        return f"{self.stream_id} of client {self._at.link.client_id!r}"

    @property
    def is_answered(self) -> bool:
        """True while no answer is missing, so that `push` does not wait."""
        return self._answers.rows == self.rows

    @property
    def is_over(self) -> bool:
        """True once it has failed, was closed, or is finished and answered."""
        return self.failure is not None or self._is_complete

    @property
    def is_without_server(self) -> bool:
        """True while it is on no server: `move` or `give_up` has to follow."""
        return self._is_without_server and not self.is_parked and not self.is_over

    @property
    def server_url(self) -> str:
        """The address of its server, or of the last one."""
        return self._at.link.endpoint.url

    @property
    def has_results(self) -> bool:
        """True once a stream that may be moved has had a result."""
        return self._replay is not None and self._replay.has_results

    async def settled(self, limit_s: float) -> None:
        """Returns when its server has answered all that was sent, or after the limit."""
        await self._at.link.settled(self, limit_s)

    async def has_fewer_rows(self, rows: int) -> None:
        """Returns when fewer rows than these are unanswered. Raises ClientError."""
        await self._wait_until(lambda: self.rows - self._answers.rows < rows)

    @property
    def has_words(self) -> bool:
        """True if words of its current segment are reported."""
        return self._replay is not None and self._replay.has_words

    def cancel(self) -> None:
        """Ends the stream without its remaining results, and frees its slot on the server. Does not wait.

        Calls to push or iterate raise StreamClosedError, also in other tasks. A stream that is over stays so.
        """
        self.fail(StreamClosedError(self.stream_id, "the stream was closed before its last result"))

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected. Called by the link."""
        if self.failure or pushed.server is not self._at or self._is_without_server:
            return  # also where it comes late, from a server that the stream has left
        self._at.answered_samples += len(pushed.row.samples)
        flags = pushed.flags
        if error is not None:
            failure = stream_error(self.stream_id, error)
            failure.of_speakers |= self.has_speakers and (isinstance(failure, ServerFullError) or failure.code == _LOST)
            # After a rejected start or end, or where the server does not know the stream, nothing is open there.
            is_closed = flags & (START | END) or isinstance(failure, StreamNotOpenError)
            self.fail(failure, is_open=False if is_closed else None)
            return
        # Before any of it counts: words of a segment that is skipped would be lost without an error.
        if (problem := self._at.order.problem(results, self._end_samples - self._offset_samples)) is not None:
            self.fail(ProtocolError(self.stream_id, problem))
            return
        round_trip_s = self._at.link.now_s() - pushed.pushed_s
        samples = pushed.end_samples - self._offset_samples
        is_whole = not flags & (END | FINALIZE) or not self._polls or ends_stream(results, samples)
        new_results = self._new_results(pushed, results, round_trip_s, flags if is_whole else 0)
        # The answer to a repeated row is kept for the next new one: each row of the caller has exactly one answer.
        is_new = self._answers.add(pushed.number, Answer(pushed.end_samples, new_results, is_whole), round_trip_s)
        # A repeated answer shows nothing: the same audio may end this server, too.
        if is_new and (is_whole or new_results):
            self.moves.note_new_result()
        if not is_whole:
            # An offline model answers an end in parts: the next one has to be asked for.
            self._at.link.enqueue(pushed.poll())
        elif flags & END:
            self._is_complete = True
            self._drop_replay()
            self._at.link.forget(self)
        else:
            parks = self._soft_ends.pop(self._answers.rows, False)
            # Not where audio was pushed since, or a move is under way: it would have no server.
            if parks and self.is_answered and not self.moves.are_under_way:
                self._leave(is_open=True)
                self._is_without_server = self.is_parked = True
        self._changed.give()

    def _new_results(
        self, pushed: Pushed, results: Sequence[Result], round_trip_s: float, flags: int
    ) -> list[StreamResult]:
        """The results that the caller does not have yet; `flags`: of the row where its answer is whole."""
        last = len(results) - 1
        found = [stream_result(one, round_trip_s, flags if i == last else 0) for i, one in enumerate(results)]
        if self._replay is not None:
            found = [one for one in map(self._new_result, found) if one is not None]
        # A soft end is to look like an endpoint of the server: it answers no `end_segment`.
        if pushed.number + 1 in self._soft_ends:
            found = [replace(one, is_endpoint=one.is_final, answers_finalize=False) for one in found]
        return found

    @property
    def _offset_samples(self) -> int:
        """Begin of its present server's stream in it."""
        return self._replay.server.offset_samples if self._replay is not None else 0

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """Takes the rejection of a row's whole request; ignored as an answer is. Called by the link."""
        if not (self.failure or pushed.server is not self._at or self._is_without_server):
            self.fail(error, is_open=True)

    def _new_result(self, result: StreamResult) -> StreamResult | None:
        """The result with the times of the whole stream, or None where it is reported already."""
        assert self._replay is not None
        taken = self._replay.new_result(result)
        if taken is None or taken is result or not taken.is_final:
            return taken
        return replace(taken, end_s=taken.audio_processed_s)

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Ends the stream with an error, after the results before it; nothing where it is over already.

        Its end is sent where the server may hold it open: `is_open`; None stands for "unless its end was sent".
        """
        if self.failure or self._is_complete:
            return
        # First: its rows in the outbox would reach a server whose answers no longer count.
        if not self._is_without_server:
            self._leave(is_open)
        self._is_without_server = True
        # The next server gets all of it from the replay.
        self.moves.backlog.clear()
        if error.code not in MOVABLE or not self._may_move(error):
            # Only where nothing moves it: with `failure` all calls that wait end.
            self.failure = error
            self._drop_replay()
        self._changed.give()

    def _drop_replay(self) -> None:
        """The stream is over: it moves no more."""
        self._replay = None
        # Now, not when the task that moves it wakes: the slot on the other server is another stream's meanwhile.
        if self.moves.arrival is not None:
            self.moves.arrival.cancel()

    def give_up(self, error: ClientError) -> None:
        """Fails the stream for good."""
        # So that `fail` neither asks those that have tried to move it, nor leaves it to a move that has ended.
        self.on_lost = lambda stream, error: False
        self.moves.are_under_way = False
        self.fail(error)

    def _may_move(self, error: ClientError) -> bool:
        """Leaves the stream to those that move it, if there are any."""
        if not self.moves.may_follow(error) or self._replay is None:
            return False
        # The move under way goes on, or fails with this error: a second one would run beside it.
        if self.moves.are_under_way:
            self.moves.error = error
            return True
        return self.on_lost(self, error)

    def _leave(self, is_open: bool | None) -> None:
        """Leaves its server; its end is sent there as `fail` says."""
        at = self._at
        # Before the end is sent: the rows that were not sent show whether the server knows of its start and its end.
        unsent = at.link.forget(self)
        if is_open is None:  # that of an offline model is, until its last result
            is_open = self._polls or not at.is_ended or bool(unsent & END)
        if is_open and at.is_begun and not unsent & START:
            send_end(self, at.link, begins_work=self._polls and bool(not at.is_ended or unsent & END))

    async def move(self, link: Link, geometry: ChunkGeometry | None, keeps_speakers: bool = True) -> None:
        """Goes on at another server of the same model, which receives the current segment again. One call at a time.

        geometry: of the model's chunks. keeps_speakers: where the stream has some; else it has none from now on.

        The server that has the stream keeps it until the other one has answered the segment; a stream on no server goes
        to the other one at once. Raises ClientError where that does not accept it, or loses it before it has answered:
        the stream is then where it was, or waits for another call on no server.
        """
        if self._replay is None:
            raise StreamClosedError(self.stream_id, "the stream is over, or was not opened to be moved")
        # From here on a loss is for this move to handle: `on_lost` would begin another one.
        self.moves.are_under_way = True
        try:
            await self._go_to(link, self._replay, geometry, keeps_speakers)
        finally:
            self.moves.are_under_way = False

    async def _go_to(self, link: Link, replay: Replay, geometry: ChunkGeometry | None, keeps_speakers: bool) -> None:
        arrival, answers = await self._arrived(link, replay, geometry, keeps_speakers)
        # Until here the old server has the stream: where the other one does not take it, nothing has changed.
        if not keeps_speakers:
            self.has_speakers = False
            replay.speakers = None
        # No await from here to `link.add`: a result of the old server in between would be reported twice.
        if not self._is_without_server:
            self._leave(is_open=None)
        link.forget(arrival)
        self._at = OnServer(link, arrival.stream_id)
        self._is_without_server = False
        # A stream that sends its audio at once goes on doing so.
        if self._aligner.geometry is not None:
            self._aligner.geometry = geometry
        # Before the answers: from here on results are compared with what the caller has.
        replay.restart(geometry)
        # All parts are a backlog: rows that the caller pushes meanwhile come after them.
        samples = self.moves.begin(repeated(replay, geometry)[1])
        link.add(self)
        backlog = self.moves.backlog
        # These were answered while the old server still had the stream: their rows are not sent again.
        for results in answers:
            if backlog:  # else one of them could not be
                self.answer(self._at.pushed(self, backlog.popleft()), results, None)
        # Some seconds at a time: other streams of this server are not to wait for all of it.
        while backlog:
            self._send(backlog.popleft())
            await self._wait_for_answers(self._at.sent_samples - _MAX_REPEATED_SAMPLES)
        await self._wait_for_answers(samples)
        if self._is_without_server:
            # Lost again before it has caught up: those that move it try the next server.
            raise self.moves.error

    async def _arrived(
        self, link: Link, replay: Replay, geometry: ChunkGeometry | None, keeps_speakers: bool
    ) -> tuple[Arrival, list[Sequence[Result]]]:
        """The stream on the other server. If this one still has it, with the answers to what it receives again.

        So no result is late: only what comes meanwhile has still to be sent.
        """
        while True:
            self._check_whole(replay, geometry)
            parameters, parts = repeated(replay, geometry)
            # On no server there is no result to wait for: all parts go once the stream is there.
            again = [] if self._is_without_server else reported(parts, replay.segment_start_samples)
            options = parameters if keeps_speakers else without_speakers(parameters)
            arrival = self.moves.arrival = Arrival(link, options, self._polls)
            try:
                answers = await arrival.catch_up(again, _MAX_REPEATED_SAMPLES)
                # Once more: the oldest audio may be forgotten by now, or the stream be over.
                self._check_whole(replay, geometry)
                # A lost link fails its streams once: one that comes later would wait for ever.
                if link.is_lost:
                    raise ConnectionLostError(self.stream_id, "lost the connection to the other server")
                same_parameters, same_parts = repeated(replay, geometry)
                # Else a segment has ended, and the answers are to audio that a replay no longer has.
                if same_parameters == parameters and begins_with(same_parts, again):
                    return arrival, answers
            except BaseException:
                arrival.cancel()
                raise
            finally:
                self.moves.arrival = None
            arrival.cancel()  # a segment has ended meanwhile

    async def _wait_for_answers(self, samples: int) -> None:
        """Returns when this server has answered this number of samples, or has lost the stream."""
        await self._wait_until(lambda: self._is_without_server or self._at.answered_samples >= samples)

    def _check_whole(self, replay: Replay, geometry: ChunkGeometry | None) -> None:
        if self.is_over or not replay.is_whole(geometry):
            message = "the stream is over, or too long since its last border, and cannot be moved"
            raise self.failure or StreamClosedError(self.stream_id, message)

    def _enqueue_all(self, samples: Samples, flags: int = 0, changes: Mapping[str, Parameter] | None = None) -> None:
        """Rows of at most the samples that one may have; the last one has the flags and changes."""
        while len(samples) > MAX_REQUEST_SAMPLES:
            self._enqueue(samples[:MAX_REQUEST_SAMPLES])
            samples = samples[MAX_REQUEST_SAMPLES:]
        self._enqueue(samples, flags, changes)

    def _enqueue(self, samples: Samples, flags: int = 0, changes: Mapping[str, Parameter] | None = None) -> None:
        parameters = changes or {}
        if not self.rows:
            if parameters:  # a start has the options before them
                self._enqueue(NO_SAMPLES)
                return self._enqueue(samples, flags, changes)
            flags, parameters = flags | START, self.parameters
        self._end_samples += len(samples)
        part = Part(samples, flags, self._end_samples, self.rows, parameters)
        self.rows += 1
        # Not kept for a replay: it has no audio, and its segment is over with the answer.
        if self.is_parked and not len(samples) and not parameters:
            return self._answer_parked(part)
        if self._replay is not None:
            # Before it is sent: where the server is lost in between, the next one gets this part, too.
            self._replay.add(part)
        if self.is_parked:
            # Still parked while `on_lost` is called, which gives back the slot of a parked stream.
            self.fail(ServerFullError(self.stream_id, "no server has a slot for the stream, which was idle"))
            self.is_parked = False
        elif self.moves.backlog:
            # Behind the parts that are repeated: a server has to get all rows in their order.
            self.moves.backlog.append(part)
        elif not self._is_without_server:
            self._send(part)
        return None

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
        self._at.link.enqueue(self._at.pushed(self, part))

    async def _wait_until(self, is_met: Callable[[], bool], limit_s: float = math.inf) -> None:
        """Returns when `is_met`, or after the limit. Raises the stream's failure if it comes first."""
        deadline_s = time.monotonic() + limit_s
        while not is_met():
            if self.failure:
                raise self.failure
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return
            await self._changed.wait(left_s)
