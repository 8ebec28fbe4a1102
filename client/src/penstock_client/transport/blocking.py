"""The transports of asyncio for threads: one event loop, in a thread of its own, carries the streams of all clients."""

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock_client.protocol import Request
from penstock_client.transport.base import AsyncConnection, AsyncTransport
from penstock_common.errors import StreamClosedError, StreamId
from penstock_common.results import Result

T = TypeVar("T")


class EventLoopThread:
    """An event loop that runs in a daemon thread until the process ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client event loop", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """False in a forked process, which has no copy of the thread."""
        return self._pid == os.getpid()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine in the loop and returns its result. An interruption by the user cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # does nothing to one that is done
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Calls the function in the loop, after what was called before. Does not wait."""
        self._loop.call_soon_threadsafe(function)

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs the coroutine as `call`, but does not wait in the loop's own thread: the garbage collector may close a
        client there.
        """
        if threading.current_thread() is self._thread:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        else:
            self.call(coroutine)


_starting = threading.RLock()  # the garbage collector may close a client inside it
_shared: list[EventLoopThread] = []


def event_loop_thread() -> EventLoopThread:
    """The event loop of this process; the first call starts it."""
    with _starting:
        if not _shared or not _shared[-1].is_running:
            _shared[:] = [EventLoopThread()]
        return _shared[-1]


class BlockingConnection:
    """A `Connection` through one of asyncio, which `connect` makes: again in a forked process."""

    def __init__(self, connect: Callable[[], AsyncConnection]):
        self._connect = connect
        self._connection = connect()
        self._thread: EventLoopThread | None = None

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "BlockingTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        thread = event_loop_thread()
        if self._thread not in (None, thread):
            self._inherited = self._connection  # kept: its sockets are the other process's, and must not be closed
            self._connection = self._connect()
        self._thread = thread
        return BlockingTransport(stream_id, thread, thread.call(self._open(stream_id, timeout_s)))

    def close(self) -> None:
        """Frees what the transports share."""
        if self._thread is not None and self._thread.is_running:
            self._thread.finish(self._connection.close())

    async def _open(self, stream_id: StreamId, timeout_s: float) -> AsyncTransport:
        return self._connection.open_transport(stream_id, timeout_s)


class _Arrival(NamedTuple):
    """A result, or the stream's end (None) with its failure."""

    result: Result | None
    is_last: bool = True
    failure: BaseException | None = None


_Arrivals = queue.SimpleQueue[_Arrival]


class BlockingTransport:
    """A `Transport` through one of asyncio. A stream that nothing refers to any more is ended on the server.

    A task of the loop receives for it: threads wait for a queue, which costs less than a call in the loop.
    """

    def __init__(self, stream_id: StreamId, thread: EventLoopThread, transport: AsyncTransport):
        self._stream_id = stream_id
        self._thread = thread
        self._transport = transport
        self._arrivals = _Arrivals()
        self._receiving: asyncio.Task[None] | None = None
        self._is_complete = self._is_cancelled = False
        self._abandon = weakref.finalize(self, _abandon, thread, transport)
        self._abandon.atexit = False  # the client closes its streams then

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the stream is opened."""
        return self._transport.name

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that are still here: they complete no chunk."""
        return self._transport.held_samples

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        return self._is_complete

    def send(self, request: Request) -> None:
        """Sends without waiting for the reply; blocks while too much is unanswered. Raises ClientError."""
        self._check_process()
        self._thread.call(self._send(request))

    def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """
        self._check_process()
        try:
            arrival = self._arrivals.get(timeout=None if self._is_cancelled else _limit_s(wait_s))
        except queue.Empty:
            return None
        if arrival.result is None:
            self._arrivals.put(arrival)  # for the next call
            if arrival.failure is not None:
                raise arrival.failure
        self._is_complete = arrival.is_last
        return arrival.result

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        if self._thread.is_running:
            self._is_cancelled = True  # the failure that follows is all that is left to wait for
            self._thread.post(self._cancel)

    def close(self) -> None:
        """Cancels, and waits until the server has taken the end, up to `limits.CLOSE_S`. Called once."""
        self._abandon.detach()
        if self._thread.is_running:
            self._thread.finish(self._transport.close())

    async def _send(self, request: Request) -> None:
        self._start_to_receive()
        await self._transport.send(request)

    def _cancel(self) -> None:
        self._transport.cancel()
        self._start_to_receive()

    def _start_to_receive(self) -> None:
        if self._receiving is None:
            name = f"penstock {self._stream_id} results"
            self._receiving = asyncio.create_task(_receive(self._transport, self._arrivals), name=name)
            self._receiving.add_done_callback(partial(_note_end, self._arrivals))

    def _check_process(self) -> None:
        if not self._thread.is_running:
            raise StreamClosedError(self._stream_id, "the stream was opened before this process was forked")


def _limit_s(wait_s: float | None) -> float | None:
    return None if wait_s is None else min(max(0.0, wait_s), threading.TIMEOUT_MAX)


async def _receive(transport: AsyncTransport, arrivals: _Arrivals) -> None:
    """Passes on the results until the stream's end. It does not refer to the stream, which may be abandoned."""
    while (result := await transport.receive(None)) is not None:
        arrivals.put(_Arrival(result, transport.is_complete))


def _note_end(arrivals: _Arrivals, receiving: "asyncio.Task[None]") -> None:
    failure = None if receiving.cancelled() else receiving.exception()
    arrivals.put(_Arrival(None, failure is None, failure))


def _abandon(thread: EventLoopThread, transport: AsyncTransport) -> None:
    if thread.is_running:
        thread.post(lambda: asyncio.ensure_future(transport.close()))
