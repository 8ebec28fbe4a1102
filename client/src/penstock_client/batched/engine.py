"""The streams of a `Client` or `AsyncClient` on one server: each opens a stream of the batched engine for itself."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from penstock_client import limits
from penstock_client.alignment import Samples
from penstock_client.batched.rows import END, FINALIZE, MOVABLE
from penstock_client.batched.server import Server, StreamSettings, move_to_any
from penstock_client.batched.server_offer import not_a_server
from penstock_client.batched.signal import AsyncSignal
from penstock_client.batched.stream import BatchedStream
from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_common.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ServerDrainingError,
    ServerFullError,
    ServerReplyError,
    ServerUnreachableError,
    StreamClosedError,
    StreamError,
    StreamId,
)
from penstock_common.options import Parameter
from penstock_common.results import Result
from penstock_common.samples import SAMPLE_RATE_HZ

MAX_UNANSWERED_SAMPLES, MAX_UNANSWERED_REQUESTS = round(limits.MAX_QUEUED_S * SAMPLE_RATE_HZ), 64
_OVERHANG_SAMPLES = 40
"""By which a window of 25 ms reaches beyond its step of 10 ms: the end of a chunk is not covered yet."""
_ONLY_WHILE_LOST = (StreamError.code, ProtocolError.code)
"""The codes of errors that a server has while it stops or starts; else they would come again."""
_LOG = logging.getLogger("penstock_client")


def server_of(endpoint: Endpoint, align: bool) -> Server:
    """The server, for the streams of one event loop. align: whole chunks are sent. ValueError for bad certificates."""
    most = math.inf if endpoint.options.reconnect_s else 0
    return Server(endpoint, StreamSettings(MAX_UNANSWERED_SAMPLES, align, most, min_speaker_replay_samples=math.inf))


class Request(NamedTuple):
    """Audio that a caller sends at once."""

    samples: Samples
    """Not the caller's array."""
    flags: int = 0
    """END or FINALIZE: the stream or its segment ends after the samples."""
    changes: Mapping[str, Parameter] = {}
    """With FINALIZE: the options that change."""


class EngineStream:
    """One stream. It connects with its first request, so errors appear there.

    A task opens it and then sends what waits: only who waits for results waits for a connection.
    """

    def __init__(self, server: Server, stream_id: StreamId, parameters: Mapping[str, Parameter]):
        """parameters: the options of its start. stream_id: names it in errors until it has a name."""
        self.stream_id = stream_id
        self._server, self._options, self._parameters = server, server.endpoint.options, parameters
        self._stream: BatchedStream | None = None
        self._requests: deque[Request] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[object] | None = None
        self._results: deque[Result] = deque()
        self._latest = Result(0, "", False, 0.0, (), (), ())
        self._failure: ClientError | None = None
        """Why the stream was not opened, or was closed."""
        self._changed = AsyncSignal()
        """Wakes the tasks that wait for the stream, for room or for a request."""
        self._cancelled_s = 0.0
        self._lost_s: float | None = None
        """Time at which the server was lost; None once there is a result again."""

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the stream is opened."""
        return "" if self._stream is None else self._stream.name

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that are still here: they complete no chunk, or it opens."""
        held_samples = 0 if self._stream is None else self._stream.held_samples
        return held_samples + sum(len(request.samples) for request in self._requests)

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        return self._stream is not None and self._stream.is_complete and not self._results

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError."""
        while True:
            self._check_open()
            # Only once all that waited for the stream is sent: requests keep their order.
            if self._stream is not None and self._sending is not None and self._sending.done():
                await self._send(self._stream, request)
                return
            # The end always has room: what its caller waits for next are results.
            if request.flags & END or self._has_room(request):
                break
            await self._changed.wait(math.inf)  # afterwards the task that sends the others may have ended
        self._requests.append(request)
        self._changed.give()
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name=f"penstock {self.stream_id} requests")

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """
        deadline_s = math.inf if wait_s is None else time.monotonic() + wait_s
        while self._stream is None:
            if self._failure is not None:
                raise self._failure
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return None
            await self._changed.wait(left_s)
        while not self._results:
            try:
                answer = await self._stream.next_answer(deadline_s - time.monotonic())
            except StreamClosedError as error:
                raise self._failure or error from None
            if answer is None:
                return None
            self._results += answer.results
            if not self._results and answer.is_whole:  # the server sends none where nothing is new
                self._results.append(self._unchanged(answer.end_samples))
            self._latest = self._results[-1] if self._results else self._latest
            if self._lost_s is not None and answer.results and not self._stream.is_without_server:
                self._note_success()
        return self._results.popleft()

    def _unchanged(self, end_samples: int) -> Result:
        """A result without anything new, after these samples of the stream."""
        assert self._stream is not None
        before, geometry = self._latest, self._server.geometry
        covered_samples = 0 if geometry is None else geometry.border(end_samples) - _OVERHANG_SAMPLES
        covered_s = max(before.audio_processed_s, covered_samples / SAMPLE_RATE_HZ)
        if before.is_final:
            return Result(before.segment + 1, "", False, covered_s, (), (), ())
        return replace(before, audio_processed_s=covered_s, new_words=(), new_tokens=(), new_timestamps=())

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        if self.is_complete or (self._stream is not None and self._stream.is_over):
            return
        self._cancelled_s = time.monotonic()
        self._fail(StreamClosedError(self.stream_id, "the stream was closed before its last result"))
        self._results.clear()
        if self._stream is not None:
            self._stream.cancel()
        if self._sending is not None:
            self._sending.cancel()

    async def close(self) -> None:
        """Cancels, and waits until the server has taken the end, at most `limits.CLOSE_S`."""
        self.cancel()
        tasks: list[asyncio.Task[Any]] = [task for task in (self._sending, self._moving) if task is not None]
        for task in tasks:
            task.cancel()
        # Before the end is sent: the task could still open the stream.
        if tasks:
            await asyncio.wait(tasks)
        if self._stream is not None:
            self._stream.cancel()
            await self._stream.settled(max(0.0, self._cancelled_s + limits.CLOSE_S - time.monotonic()))

    def _has_room(self, request: Request) -> bool:
        """True where another request may wait for the stream to be opened."""
        samples = sum(len(each.samples) for each in (*self._requests, request))
        return not self._requests or (
            len(self._requests) < MAX_UNANSWERED_REQUESTS and samples <= MAX_UNANSWERED_SAMPLES
        )

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stream is not None and self._stream.failure is not None:
            raise self._stream.failure

    def _fail(self, error: ClientError) -> None:
        self._failure = self._failure or error
        self._requests.clear()
        self._changed.give()

    async def _send_all(self) -> None:
        """Opens the stream, and sends what has waited for that. Later requests are sent as they come."""
        try:
            self._stream = stream = await self._opened()
            if self._options.reconnect_s:
                stream.on_lost = self._note_loss
            while self._requests:
                self._changed.give()
                await self._send(stream, self._requests[0])
                # Only now: until it is sent it counts in `held_samples`.
                self._requests.popleft()
            self._changed.give()
        except ClientError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # tasks that wait for results would wait for ever
            self._fail(StreamError(self.stream_id, f"{type(error).__name__}: {error}"))
            if self._stream is not None:
                self._stream.cancel()

    @staticmethod
    async def _send(stream: BatchedStream, request: Request) -> None:
        if request.flags & END:
            await stream.finish(request.samples)
            return
        await stream.has_fewer_rows(MAX_UNANSWERED_REQUESTS)
        if request.flags & FINALIZE:
            await stream.end_with(request.samples, request.changes)
        else:
            await stream.push(request.samples)

    async def _opened(self) -> BatchedStream:
        """The stream; with `wait_for_slot_s` once the server has accepted it, before any audio."""
        pauses = retry_pauses_s(self._options.wait_for_slot_s)
        is_rejected = False  # then it may be gone for a while, too: it starts again
        while True:
            try:
                stream = await self._server.open(self._parameters)
                if self._options.wait_for_slot_s:
                    await stream.started()
                    await stream.next_answer()  # no request of the caller, which gets no result for it
                return stream
            except (
                ServerFullError, ServerDrainingError, ServerUnreachableError, ConnectionLostError, ServerReplyError,
            ) as error:  # fmt: skip
                is_rejected |= isinstance(error, ServerFullError | ServerDrainingError)
                pause_s = next(pauses, None) if is_rejected else None
                if pause_s is None:
                    if isinstance(error, ServerReplyError):
                        raise self._explained(error) from error
                    raise
                await asyncio.sleep(pause_s)

    def _explained(self, error: ServerReplyError) -> ServerUnreachableError:
        """The error where a server answers that cannot be used: it has no such model, or is another kind of server."""
        endpoint, reason = self._server.endpoint, str(error.__cause__ or error.text)
        is_other = isinstance(error.__cause__, ValueError)
        return not_a_server(endpoint, reason) if is_other else ServerUnreachableError(endpoint.url, reason)

    def _note_loss(self, stream: BatchedStream, error: ClientError) -> bool:
        """Reconnects a stream that has had results."""
        has_begun = stream.has_results or (error.of_speakers and stream.is_accepted)
        is_elsewhere = error.of_speakers or self._lost_s is not None or error.code not in _ONLY_WHILE_LOST
        if error.code not in MOVABLE or not (is_elsewhere and has_begun) or self._failure is not None:
            return False
        reconnect_s, now_s = self._options.reconnect_s, time.monotonic()
        if self._lost_s is None:
            self._lost_s = now_s
            _LOG.warning("%s; reconnecting for up to %g s", error, reconnect_s)
        # Another server may be at the address by now, where the stream cannot go on.
        self._server.forget_offer()
        limit_s = self._lost_s + reconnect_s - now_s
        self._moving = asyncio.create_task(move_to_any(stream, error, lambda: [self._server], limit_s))
        return True

    def _note_success(self) -> None:
        assert self._lost_s is not None and self._stream is not None
        took_s, self._lost_s = time.monotonic() - self._lost_s, None
        start_s = self._stream.restarted_from_s
        _LOG.warning("reconnected after %.1f s; sent again from %.2f s, nothing is missing", took_s, start_s)
