"""Streams for threads: one event loop, in a thread of its own, carries the streams of all clients."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock_client.batched.engine import EngineStream
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


_Queue = queue.SimpleQueue[tuple[Result, bool] | BaseException | None]
"""Results, and behind them the stream's end: why, where it has failed."""


class Arrivals:
    """The results of one stream, for threads. A task of the event loop receives them.

    Threads wait for a queue, which costs less than a call in the loop.
    """

    def __init__(self) -> None:
        self._queue = _Queue()
        self._receiving: asyncio.Task[None] | None = None

    def begin(self, stream: EngineStream) -> None:
        """Begins to receive, unless it has begun. Called in the loop."""
        if self._receiving is None:
            name = f"penstock {stream.stream_id} results"
            self._receiving = asyncio.create_task(_receive(stream, self._queue), name=name)
            put = self._queue.put
            self._receiving.add_done_callback(lambda task: put(None if task.cancelled() else task.exception()))

    def next(self, wait_s: float | None) -> tuple[Result, bool] | None:
        """The next result, and whether it is the last; None after `wait_s` (None: no limit) or at the stream's end.

        Raises ClientError.
        """
        try:
            arrival = self._queue.get(timeout=None if wait_s is None else min(max(0.0, wait_s), threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if isinstance(arrival, tuple):
            return arrival
        self._queue.put(arrival)  # for the next call
        if arrival is not None:
            raise arrival
        return None


async def _receive(stream: EngineStream, arrivals: _Queue) -> None:
    """Passes on the results until the stream's end. Does not refer to the caller's stream, which may be abandoned."""
    while (result := await stream.receive(None)) is not None:
        arrivals.put((result, stream.is_complete))
