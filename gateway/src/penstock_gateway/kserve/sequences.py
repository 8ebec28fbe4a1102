"""Streams of KServe's sequences: each API key has its own ids. Knows no wire format."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock_client import Answer, Result
from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.options import is_live_window
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.kserve.errors import invalid_request, not_open
from penstock_gateway.kserve.request import InferRequest, SequenceId
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.security.limits import MAX_SILENT_S
from penstock_gateway.stream.options import LiveStreamOptions, ModelGroup
from penstock_gateway.stream.replica_stream import ReplicaStream
from penstock_gateway.stream.replica_streams import ReplicaStreams

_HOPS_PER_S = 100
"""Mel frames per second of all models."""
PROTOCOL = "kserve"
"""Name of the protocol in metrics and logs."""
Results = Sequence[Result]
_PART_SAMPLES = 16_000


class RequestResults:
    """Collects the answers to the rows of one stream, and gives out the results of a request.

    These are everything that is new, or the text as it is.
    """

    def __init__(self, group: ModelGroup):
        self._rate_hz = group.sample_rate_hz
        self._geometry: ChunkGeometry | None = read_geometry(group.parameters)
        self._new: list[Result] = []
        self._now = Result(0, "", False, 0.0, (), (), ())
        """The answer to a request without a new result."""

    def add(self, answer: Answer) -> None:
        """The answer to the next row."""
        for result in answer.results:
            self._add(result)
        if answer.results:
            return
        covered_s = self._covered_s(answer.end_samples)
        if covered_s is not None and covered_s > self._now.audio_processed_s:
            self._now = replace(self._now, audio_processed_s=covered_s)
            if self._new:  # a request has one entry for the current segment
                self._add(self._now)

    @property
    def has_changes(self) -> bool:
        """True while results are collected that `pop` has not returned."""
        return bool(self._new)

    def cancelled(self, samples: int) -> Sequence[Result]:
        """The answer to a request that drops the work which is left of a stream of this length."""
        return [replace(self._now, text="", is_final=True, audio_processed_s=samples / self._rate_hz)]

    def pop(self) -> Sequence[Result]:
        """The results of a request whose rows are all answered, or of a poll."""
        new, self._new = self._new, []
        return new or [self._now]

    def _add(self, result: Result) -> None:
        if self._new and not self._new[-1].is_final:
            result = _joined(self._new.pop(), result)
        self._new.append(result)
        if result.is_final:
            self._now = Result(result.segment + 1, "", False, result.audio_processed_s, (), (), ())
        else:
            self._now = replace(result, new_words=(), new_tokens=(), new_timestamps=())

    def _covered_s(self, end_samples: int) -> float | None:
        """Audio of the stream up to the last whole hop of its chunks; None where their borders are not known."""
        if self._geometry is None:
            return None
        border = self._geometry.border(end_samples)
        window_rest = self._geometry.first_chunk_samples % (self._rate_hz // _HOPS_PER_S)
        return max(0, border - window_rest) / self._rate_hz


def _joined(earlier: Result, later: Result) -> Result:
    """One result for two of the same segment."""
    return replace(
        later,
        new_words=earlier.new_words + later.new_words,
        new_tokens=earlier.new_tokens + later.new_tokens,
        new_timestamps=earlier.new_timestamps + later.new_timestamps,
    )


class _Waiting(NamedTuple):
    """A request whose rows are on their way."""

    last_row: int
    answer: "asyncio.Future[Results]"
    is_poll: bool
    """Also a part of the answer to its last row is an answer."""


class Sequences:
    """The open streams of one port, by key and id."""

    def __init__(self, streams: ReplicaStreams):
        self._streams = streams
        self._open: dict[tuple[str, SequenceId], _Stream] = {}
        """Those that a request can reach."""
        self._running: set[_Stream] = set()
        """Those on a replica, also after their last request."""

    async def infer(self, request: InferRequest, key: ApiKey, peer: str = "") -> Results:
        """The results of a request that is a call of its own; as `send`. `peer`: names its connection, see `lose`.

        Where it is cancelled, its client has gone: a stream that it has ended is freed.
        """
        call = object()
        try:
            return await (await self.send(request, key, call, peer))
        except asyncio.CancelledError:
            await _cancel_all(self._running.difference(self._open.values()), call)
            raise

    async def send(self, request: InferRequest, key: ApiKey, call: object, peer: str = "") -> "asyncio.Future[Results]":
        """Sends a request's audio and returns its answer, which may still be on its way.

        Waits while too much audio of the stream is unanswered. `call`: see `end_call`. Raises GatewayError where the
        request is rejected or the stream has failed; the answer does so, too.
        """
        place = (key.name, request.sequence_id)
        stream = self._open.get(place)
        if request.problem is not None:
            if request.is_end and stream is not None and not request.is_start:
                await stream.cancel("its last request was rejected")
            raise request.problem.again()
        if request.is_start:
            if stream is not None:
                await stream.cancel("it was started again")
            stream = self._open[place] = _Stream(
                request.sequence_id, lambda ended: self._forget(place, ended), self._running
            )
        elif stream is None:
            raise not_open(request.sequence_id, "it was never started, has ended or was idle for too long")
        stream.call, stream.peer = call, peer
        return await stream.send(request, key, self._streams)

    async def end_call(self, call: object) -> None:
        """A call has ended: frees the streams whose latest request came in it."""
        await _cancel_all(self._running.union(self._open.values()), call)

    async def lose(self, key: ApiKey, peer: str) -> None:
        """A call of this connection was cancelled before its request was read, which may be of any stream."""
        for (name, _), stream in list(self._open.items()):
            if name == key.name and stream.peer == peer:
                await stream.lose()

    def _forget(self, place: tuple[str, SequenceId], ended: "_Stream") -> None:
        if self._open.get(place) is ended:
            del self._open[place]


class _Stream:
    """One stream; its requests are sent and answered in order. `forget` is called when no request can reach it.

    It is in `running` while it is on a replica. That of a file in several requests can be reached after its end, until
    all results are taken: the client polls, as at the server.
    """

    def __init__(self, stream_id: SequenceId, forget: Callable[["_Stream"], None], running: "set[_Stream]"):
        self.call: object = None
        """That of the latest request."""
        self.peer = ""
        """Names the connection of its latest request, if that was a call of its own."""
        self._id = stream_id
        self._forget, self._running = forget, running
        self._sending = asyncio.Lock()
        self._live: ReplicaStream | None = None
        self._results: RequestResults | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._samples = self._answered_rows = 0
        self._polls = self._is_finished = self._is_answered = False
        """Finished: its last request was sent. Answered: all of it."""
        self._has_part = False
        """A part of the answer to the last row has come since the last poll."""
        self._failure: GatewayError | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    async def send(self, request: InferRequest, key: ApiKey, streams: ReplicaStreams) -> "asyncio.Future[Results]":
        """Opens the stream with its first request. Raises GatewayError."""
        try:
            async with self._sending:
                self._check()
                live = self._live or await self._open(request, key, streams)
                if self._is_finished:
                    return await self._poll(live, request)
                await self._push(live, request)
                return self._answer_of(live.rows)
        except GatewayError as error:
            self._forget(self)
            error.with_traceback(None)  # its stream keeps it
            raise (self._failure or error).again() from None
        except asyncio.CancelledError:  # the client has gone, and a part of its audio may be missing
            await self.cancel("a request was broken off")
            raise

    async def cancel(self, reason: str) -> None:
        """Frees the stream; its unanswered requests fail."""
        self._forget(self)
        self._fail(not_open(self._id, reason))
        if self._live is not None:
            await self._live.cancel()

    async def lose(self) -> None:
        """Frees the stream; the next request gets STREAM_LOST."""
        message = f"stream {self._id!r} may miss a request that was cancelled"
        self._fail(GatewayError(ErrorCode.STREAM_LOST, message, server_code="STREAM_LOST"))
        asyncio.get_running_loop().call_later(MAX_SILENT_S, self._forget, self)
        if self._reading is not None and self._live is not None:
            self._reading.cancel()
            await self._live.cancel()

    async def _open(self, request: InferRequest, key: ApiKey, streams: ReplicaStreams) -> ReplicaStream:
        group: ModelGroup = streams.group("")
        self._polls = bool(group.windows) and not request.is_end
        is_file = (self._polls or request.is_end) and not is_live_window(request.options.get("window"))
        options = LiveStreamOptions(model=group.name, extra=request.options, is_as_direct=True, is_file=is_file)
        live = await streams.open(options, key, PROTOCOL)
        if self._failure is not None:  # cancelled meanwhile
            await live.cancel()
            raise self._failure.again()
        self._live, self._results = live, RequestResults(group)
        self._reading = asyncio.create_task(self._read(live, self._results))
        self._running.add(self)
        self._reading.add_done_callback(lambda _: self._running.discard(self))
        return live

    async def _push(self, live: ReplicaStream, request: InferRequest) -> None:
        for start in range(0, max(1, len(request.samples)), _PART_SAMPLES):  # a failed push keeps its array
            await live.push(request.samples[start : start + _PART_SAMPLES].copy())
        self._samples += len(request.samples)
        if request.is_end:
            self._is_finished = True
            if not self._polls:
                self._forget(self)
            await live.finish()
        elif request.finalize:
            await live.end_segment()

    async def _poll(self, live: ReplicaStream, request: InferRequest) -> "asyncio.Future[Results]":
        """The answer to a request after the stream's end: what is new; another end drops the work that is left."""
        answer = _new_answer()
        if request.finalize or len(request.samples):  # no failure of the stream, so it is not raised
            answer.set_exception(
                invalid_request(f"stream {self._id!r} has ended; accepted: empty requests, which poll")
            )
        elif request.is_end:
            assert self._results is not None  # as there is a stream on a replica
            answer.set_result(self._results.cancelled(self._samples))
            await self.cancel("it was cancelled")
        else:
            return self._answer_of(live.rows)
        return answer

    def _answer_of(self, rows: int) -> "asyncio.Future[Results]":
        """The answer to a request whose last row has this number, from 1."""
        self._check()
        answer = _new_answer()
        self._waiting.append(_Waiting(rows, answer, is_poll=self._polls and self._is_finished))
        self._settle()
        return answer

    async def _read(self, live: ReplicaStream, results: RequestResults) -> None:
        """Answers requests as their rows are answered, until the stream ends."""
        try:
            async for answer in live.answers():
                results.add(answer)
                self._answered_rows += answer.is_whole
                self._has_part = not answer.is_whole
                self._settle()
            self._is_answered = True
            self._settle()
        except GatewayError as error:
            if self._waiting:
                self._forget(self)
            else:  # the next request gets it
                asyncio.get_running_loop().call_later(MAX_SILENT_S, self._forget, self)
            self._fail(error)

    def _settle(self) -> None:
        """Answers the requests that are due, and ends the stream once all its results are given out."""
        if (results := self._results) is None:
            return
        while self._waiting and self._is_due(self._waiting[0], results):
            waiting, self._has_part = self._waiting.popleft(), False
            if not waiting.answer.done():
                waiting.answer.set_result(results.pop())
            if waiting.is_poll:
                self._expect_poll()
        if self._is_answered and not results.has_changes:
            self._forget(self)
            self._fail(not_open(self._id, "it has ended"))

    def _is_due(self, waiting: _Waiting, results: RequestResults) -> bool:
        has_part = self._has_part or results.has_changes
        return waiting.last_row <= self._answered_rows or (waiting.is_poll and has_part)

    def _expect_poll(self) -> None:
        """The next one has to follow in time."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(MAX_SILENT_S, self._expire)

    def _expire(self) -> None:
        if not self._waiting:
            self._expiring = asyncio.create_task(self.cancel("it was idle for too long"))

    def _fail(self, error: GatewayError) -> None:
        """Fails what is unanswered; the first failure counts."""
        self._failure = self._failure or error.again()
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(self._failure.again())

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.again()


async def _cancel_all(streams: Iterable[_Stream], call: object) -> None:
    """Frees those of them whose latest request came in this call, which has ended."""
    for stream in [stream for stream in streams if stream.call is call]:
        await stream.cancel("its call has ended")


def _new_answer() -> "asyncio.Future[Results]":
    answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    answer.add_done_callback(_note)
    return answer


def _note(answer: "asyncio.Future[Results]") -> None:
    """Takes the failure of an answer whose client has gone: asyncio would report it."""
    if not answer.cancelled():
        answer.exception()
