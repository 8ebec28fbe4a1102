"""One call of a model on one server: rows of all its streams share requests, replies come in order.

Also the end of a stream there, and the arrival of one that moves.
"""

import asyncio
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from operator import or_

from penstock_client import limits
from penstock_client.batched.call import BatchCall, CallLostError, RawReply, UnreadableReplyError, open_call
from penstock_client.batched.rows import END, MAX_ROWS, NO_SAMPLES, START, Part, Pushed, Receiver, Row, decode_reply
from penstock_client.batched.signal import AsyncSignal
from penstock_client.connection import Endpoint
from penstock_client.protocol import MAX_REQUEST_SAMPLES, SPEAKERS_MODEL_NAME
from penstock_client.replies import stream_error
from penstock_common.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerDrainingError,
    StreamClosedError,
    StreamError,
    StreamNotOpenError,
)
from penstock_common.options import Parameter
from penstock_common.results import Result

_REQUESTS_WHILE_BEHIND = 2
"""At most this many requests in the time that the server is behind."""
_OF_TRITON = (StreamError.code, ServerDrainingError.code)
"""The codes of errors of Triton itself: a model is not there."""
MAX_SAMPLES = 900_000
"""The most in a request of several rows: 3.6 MB; servers and proxies accept 4 MB by default."""


class Link:
    """Sends and receives for its streams until `close`, or until the server is lost: then all of them fail.

    Made in a running event loop. Stream numbers are this link's own: the server tells links apart by a random name.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        is_alive: Callable[[], Awaitable[bool]] | None = None,
        slow_s: float = 0.0,
        beside: "Link | None" = None,
    ):
        """is_alive: asked 1 s before the timeout if no reply has come; if so, the server has `slow_s` from the last.

        beside: a link to the same server, which shares its channel.
        """
        self.endpoint, self._is_of_speakers = endpoint, endpoint.model == SPEAKERS_MODEL_NAME
        self._is_alive, self._slow_s = is_alive, slow_s
        # Random, so that streams of a link that was lost are none of the next one's on the server.
        self.client_id = secrets.token_hex(16)
        self._numbers = 0
        # A dictionary and no set: streams fail in the order in which they came.
        self._streams: dict[Receiver, None] = {}
        self._outbox: deque[Pushed] = deque()
        self._in_flight: deque[tuple[float, list[Pushed]]] = deque()
        """The unanswered requests: when each was sent, and its rows."""
        self._last_activity_s = self.now_s()
        self._quickest_s = math.inf
        """The shortest time to a reply."""
        self._round_trip_s = self._last_sent_s = 0.0
        self._wake = AsyncSignal()
        """Wakes the sender: there are rows, or room for a request."""
        self._call: BatchCall = open_call(endpoint, beside._call if beside is not None else None)
        self._ending: asyncio.Task[None] | None = None
        """Ends the streams on a server that this link has lost, and that may be alive."""
        self.is_lost = False
        """True once its streams have failed: it takes no more."""
        self._tasks = [
            asyncio.create_task(work(), name=f"penstock batched {name}")
            for name, work in {"sender": self._send, "receiver": self._receive, "watch": self._watch}.items()
        ]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    @staticmethod
    def now_s() -> float:
        """The clock of all times."""
        return time.monotonic()

    @property
    def live(self) -> int:
        """Number of its streams."""
        return len(self._streams)

    def next_number(self) -> int:
        """A number for a new stream of this link."""
        self._numbers += 1
        return self._numbers

    def add(self, stream: Receiver) -> None:
        """The stream fails if the server is lost."""
        self._streams[stream] = None

    def enqueue(self, pushed: Pushed) -> None:
        """Sends the row with the next request."""
        if self.is_lost:
            return
        self._outbox.append(pushed)
        self._wake.give()

    def forget(self, stream: Receiver) -> int:
        """Drops the stream and its unsent rows; returns all flags of these."""
        # Its rows on their way stay: replies are matched to requests by their order, so none may be skipped.
        self._streams.pop(stream, None)
        unsent = [pushed for pushed in self._outbox if pushed.stream is stream]
        if unsent:
            self._outbox = deque(pushed for pushed in self._outbox if pushed.stream is not stream)
        return reduce(or_, (pushed.row.flags for pushed in unsent), 0)

    async def settled(self, stream: Receiver, limit_s: float) -> None:
        """Returns when a stream's rows of now are sent and answered, when the server is lost, or after the limit."""
        deadline_s, rows = self.now_s() + limit_s, [row for row in self._unanswered() if row.stream is stream]
        names = set(map(id, rows))  # rows have arrays, which cannot be compared
        while not self.is_lost and self.now_s() < deadline_s and not names.isdisjoint(map(id, self._unanswered())):
            await asyncio.sleep(limits.POLL_S)

    def _unanswered(self) -> list[Pushed]:
        """The rows that wait, and those on their way."""
        return [*chain.from_iterable(rows for _, rows in self._in_flight), *self._outbox]

    async def close(self, at_once: bool = False) -> None:
        """Ends its streams, on the server too unless it is `at_once`, and the call."""
        for stream in list(self._streams):
            stream.cancel()
        # The ends that `cancel` has put into the outbox are to reach the server, or its slots stay taken.
        deadline_s = self.now_s() + (0.0 if at_once else limits.CLOSE_S)
        while not self.is_lost and (self._outbox or self._in_flight) and self.now_s() < deadline_s:
            await asyncio.sleep(limits.POLL_S)
        self.is_lost = True
        for task in self._tasks:
            task.cancel()
        if self._ending is not None and at_once:
            self._ending.cancel()
        await asyncio.gather(*self._tasks, *([self._ending] if self._ending else []), return_exceptions=True)
        await self._call.close()

    async def _send(self) -> None:
        while True:
            while not self._outbox:
                await self._wake.wait(math.inf)
            # The rows of other streams join meanwhile.
            await asyncio.sleep(max(0.0, self._last_sent_s + self._spacing_s() - self.now_s()))
            are_left = True
            while are_left:
                # Rows stay in the outbox while the server is full: there those of more streams share the next request.
                while len(self._in_flight) >= self._call.max_unanswered:
                    await self._wake.wait(math.inf)
                if not (rows := self._next_rows()):
                    break  # their streams were cancelled meanwhile
                are_left = bool(self._outbox)  # those that come while it is written wait for the next one
                # Before the write, which may wait: the reply could be there when it returns.
                self._note_sent(rows)
                await self._call.write(self.client_id, [pushed.row for pushed in rows])

    def _spacing_s(self) -> float:
        """A server that is behind gets fewer and larger requests: each row of many streams takes less of its time."""
        # A stream alone has no others to share a request with: to wait would only make it later.
        if len(self._streams) == 1:
            return 0.0
        waited_s = self.now_s() - self._in_flight[0][0] if self._in_flight else 0.0
        behind_s = max(self._round_trip_s, waited_s) - self._quickest_s
        return min(max(0.0, behind_s / _REQUESTS_WHILE_BEHIND), limits.MAX_APART_S)

    def _note_sent(self, rows: list[Pushed]) -> None:
        now_s = self.now_s()
        # The time without a reply counts from the first request that has none, not from the last reply.
        if not self._in_flight:
            self._last_activity_s = now_s
        self._in_flight.append((now_s, rows))
        self._last_sent_s = now_s

    def _next_rows(self) -> list[Pushed]:
        """The rows of the next request."""
        taken: list[Pushed] = []
        samples, of_stream = 0, Counter[int]()
        while self._outbox and len(taken) < MAX_ROWS:
            row = self._outbox[0].row
            # Options count by their bytes: four are as many as a sample of float32.
            samples += len(row.samples) + len(row.options or "") // 4
            of_stream[row.number] += len(row.samples)
            # The first row always goes, however large: it would wait for ever.
            if taken and (samples > MAX_SAMPLES or of_stream[row.number] > MAX_REQUEST_SAMPLES):
                break
            taken.append(self._outbox.popleft())
        return taken

    async def _receive(self) -> None:
        try:
            async for reply in self._call.replies():
                # Before the answers: the round trip is measured from it.
                self._last_activity_s = self.now_s()
                self._deliver(reply)
                # After them: a stream that had to wait for this answer adds its next row to the next request.
                self._wake.give()
        except UnreadableReplyError as error:
            self._fail_all(ProtocolError, f"the server's reply cannot be read: {error}")
        except CallLostError as error:
            self._lose(str(error))

    def _deliver(self, reply: RawReply) -> None:
        """Gives each row's answer to its stream."""
        if not self._in_flight:
            # Replies have no names: after one too many, each would be taken for the answer to another request.
            self._lose("it sent a reply without a request")
            return
        sent_s, rows = self._in_flight.popleft()
        self._round_trip_s = self._last_activity_s - sent_s
        self._quickest_s = min(self._quickest_s, self._round_trip_s)
        try:
            results, errors = decode_reply(reply.values, reply.error, len(rows))
        except StreamError as error:
            self._reject(rows, error)
            return
        # In the order of the request: a stream may have several rows in it, whose results follow one another.
        for i, pushed in enumerate(rows):
            pushed.stream.answer(pushed, results.get(i, ()), errors.get(i))

    async def _watch(self) -> None:
        """Fails the streams if the server leaves a request unanswered for the timeout."""
        timeout_s = limit_s = self.endpoint.timeout_s
        is_asked, lives, ask_s = False, False, math.inf
        if self._is_alive is not None and (self._slow_s > timeout_s or self._is_of_speakers):
            ask_s = max(timeout_s - limits.ALIVE_S, timeout_s / 2)  # so that its answer is there at the timeout
        while True:
            waited_s = self.now_s() - self._last_activity_s if self._in_flight else 0.0
            if waited_s < ask_s:
                limit_s, is_asked, lives = timeout_s, False, False
            elif not is_asked and self._is_alive is not None:
                is_asked = True
                # Over another connection: this one is silent either way, where the server is slow and where it is dead.
                lives = await self._is_alive()
                limit_s = max(self._slow_s, timeout_s) if lives else timeout_s
                # The question has taken its time: what has come meanwhile counts.
                continue
            if waited_s >= limit_s:
                message = f"no reply from the server at {self.endpoint.url} for {limit_s:g} s"
                self._fail_all(ReplyTimeoutError, message, of_speakers=self._is_of_speakers and lives)
                self._call.cancel()
                return
            next_s = limit_s if is_asked else min(ask_s, limit_s)
            # Never longer than a quarter: a first request may be sent meanwhile, whose time runs from then on.
            due_s = self.now_s() + min(next_s - waited_s, timeout_s / 4)
            await asyncio.sleep(due_s - self.now_s())
            # This process was stalled: replies may wait in the socket, unread, so the time begins anew.
            if self.now_s() - due_s > limits.STALL_S:
                self._last_activity_s = self.now_s()

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):  # its streams would wait for ever
            self._lose(f"{type(error).__name__}: {error}")

    def _lose(self, why: str) -> None:
        self._fail_all(ConnectionLostError, f"lost the connection to the server at {self.endpoint.url}: {why}")

    def _fail_all(self, kind: type[StreamError], message: str, of_speakers: bool = False) -> None:
        # First: the ends that failing streams would still send on this link go nowhere.
        self.is_lost = True
        # All at once: each stream that fails would search it for its own rows.
        self._outbox.clear()
        if self._streams and self._ending is None:
            self._ending = asyncio.create_task(self._end_all([stream.stream_id for stream in self._streams]))
        # Streams in the middle of a sentence first: they get the room that other servers have.
        for stream in sorted(self._streams, key=lambda each: not each.has_words):
            error = kind(stream.stream_id, message)
            error.of_speakers = of_speakers
            # Not open: `_end_all` ends all streams of the link at once.
            stream.fail(error, is_open=False)

    def _reject(self, rows: Sequence[Pushed], error: StreamError) -> None:
        """Fails the streams of a request that was rejected whole, and ends them.

        The client cannot know which model of the server rejected it: its first one, which opens and closes streams, or
        a later one. Only requests with speakers meet the speaker model, so it is taken for that one there.
        """
        for pushed in rows:
            failure = type(error)(pushed.stream.stream_id, error.message, error.code)
            if self._is_of_speakers and error.code in _OF_TRITON:
                failure = StreamError(pushed.stream.stream_id, error.message)
                failure.of_speakers = True
            pushed.stream.reject(pushed, failure)

    async def _end_all(self, numbers: Sequence[int]) -> None:
        """Ends the streams over another call, so that their slots are free: the server may be alive."""
        rows = [Row(number, NO_SAMPLES, END) for number in numbers]
        with suppress(ClientError, CallLostError, UnreadableReplyError, asyncio.TimeoutError):
            call = open_call(self.endpoint)
            try:
                for start in range(0, len(rows), MAX_ROWS):
                    await call.write(self.client_id, rows[start : start + MAX_ROWS])
                replies = call.replies()
                for _ in range(0, len(rows), MAX_ROWS):
                    await asyncio.wait_for(anext(replies), limits.CLOSE_S)
            finally:
                await call.close()


def send_end(stream: Receiver, link: Link, begins_work: bool) -> None:
    """Ends a stream without awaiting answers. begins_work: an offline model will recognize its audio.

    A second end drops the work that the first one begins.
    """
    # No state of the stream goes with it: the answer to this end is dropped when it comes.
    row = Row(stream.stream_id, NO_SAMPLES, END)
    for _ in range(2 if begins_work else 1):
        link.enqueue(Pushed(stream, row, 0, link.now_s()))


class Arrival:
    """A stream on the server that another one moves to, before anything is taken from the one that it leaves."""

    has_words = True

    def __init__(self, link: Link, parameters: Mapping[str, Parameter], polls: bool = False):
        """polls: of an offline model."""
        self.stream_id = link.next_number()
        self._link = link
        self._polls = polls
        self._answers: list[Sequence[Result]] = []
        self._sent_samples = self._answered_samples = 0
        self._failure: ClientError | None = None
        self._is_open = True
        """The server may hold it open."""
        self._is_cancelled = False
        self._changed = AsyncSignal()
        link.add(self)
        self._send(Part(NO_SAMPLES, START, 0, -1, parameters))

    async def catch_up(self, parts: Sequence[Part], max_in_flight_samples: int) -> list[Sequence[Result]]:
        """Sends these parts once the server has accepted the stream; returns the answers to them. Raises ClientError.

        max_in_flight_samples: on their way at a time.
        """
        # The start alone first: where the server rejects it, no audio was sent for nothing.
        await self._wait_until(lambda: bool(self._answers))
        for part in parts:
            self._send(part)
            await self._wait_until(lambda: self._sent_samples - self._answered_samples <= max_in_flight_samples)
        await self._wait_until(lambda: len(self._answers) > len(parts))
        return self._answers[1:]

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row. Called by the link."""
        if error is not None:
            failure = stream_error(self.stream_id, error)
            # A rejected start, or a stream that the server does not know, leaves nothing to end there.
            self.fail(failure, is_open=not (pushed.flags & START or isinstance(failure, StreamNotOpenError)))
            return
        self._answered_samples += len(pushed.row.samples)
        self._answers.append(results)
        self._changed.give()

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """Takes the rejection of a row's request. Called by the link."""
        # A later model may have rejected the request: then the first one holds the stream open.
        self.fail(error, is_open=True)

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """The stream is lost there."""
        if self._failure is None:
            self._failure, self._is_open = error, bool(is_open)
            self._changed.give()

    def cancel(self) -> None:
        """Ends the stream on the server, if it may be open there."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        # First: its rows in the outbox are not to reach the server, and where its start is among them none is open.
        unsent = self._link.forget(self)
        if self._is_open and not unsent & START:
            send_end(self, self._link, begins_work=self._polls and bool(self._sent_samples))
        self.fail(StreamClosedError(self.stream_id, "the stream was closed"))

    def _send(self, part: Part) -> None:
        self._sent_samples += part.samples
        self._link.enqueue(Pushed(self, part.row(self.stream_id), part.end_samples, self._link.now_s()))

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        while self._failure is None and not is_met():
            await self._changed.wait(math.inf)
        if self._failure is not None:
            raise self._failure
