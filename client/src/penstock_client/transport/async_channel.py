"""A session shared by the tasks that use a stream and the one that talks to the network. No network protocol."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from penstock_client.connection import Endpoint
from penstock_client.errors import ClientError, ServerDrainingError, ServerFullError, StreamId
from penstock_client.protocol import Request, Result
from penstock_client.transport.probe import explain
from penstock_client.transport.session import Session

JOIN_TIMEOUT_S = 1.0
"""Time for which closing waits for a transport's task once its network call is interrupted."""


class AsyncSignal:
    """Wakes the tasks that wait at that moment. A later wait is for the next signal.

    Used instead of `asyncio.Event` in `asyncio.wait_for`, which up to Python 3.11 creates a task for each wait.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def give(self) -> None:
        """Wakes the waiting tasks."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _resolve(future)

    async def wait(self, limit_s: float) -> None:
        """Returns at the next signal, or after `limit_s`, which may be infinite."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        timer = None if limit_s == math.inf else loop.call_later(limit_s, _resolve, future)
        try:
            await future
        finally:
            if timer:
                timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)


class AsyncChannel:
    """A `Session` with waiting that does not block the event loop. For the tasks of one event loop."""

    def __init__(self, stream_id: StreamId, url: str, timeout_s: float, wait_for_slot_s: float = 0.0):
        self.session = Session(stream_id, url, timeout_s, wait_for_slot_s=wait_for_slot_s)
        """Read it freely; change it inside `update` only."""
        self._results_ready = AsyncSignal()
        """Wakes the tasks that use the stream."""
        self._send_ready = AsyncSignal()
        """Wakes the task that talks to the network, but not for each reply."""

    @contextmanager
    def update(self) -> Iterator[Session]:
        """The session, for changes; wakes the tasks that wait for them."""
        yield self.session
        self._results_ready.give()
        if self.session.has_request or self.session.is_over:
            self._send_ready.give()

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        return self.session.is_complete

    async def send(self, request: Request) -> None:
        """Enqueues a request. Waits while too much audio is unanswered, except for the stream's last request.

        Raises the stream's failure, if there is one.
        """
        sent_s = self.session.now_s()
        await self._wait_until(lambda: self.session.has_room(request), math.inf)
        with self.update() as session:
            session.enqueue(request, sent_s)

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s`, or if the stream is complete.

        With `wait_s` None it waits without a limit. Raises the stream's failure after the results before it.
        """
        await self._wait_until(lambda: self.session.has_result, math.inf if wait_s is None else wait_s)
        return self.session.next_result()

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        with self.update() as session:
            session.cancel()

    async def requests(self) -> AsyncIterator[Request]:
        """Each request once it is to be sent, until the last."""
        while not self.session.is_over:
            if (request := self.session.next_request()) is not None:
                yield request
            else:
                await self._send_ready.wait(math.inf)

    async def pause(self, pause_s: float) -> bool:
        """Waits before the next attempt to connect; returns True at once when no request will be sent any more."""
        deadline_s = self.session.now_s() + pause_s
        while not self.session.is_over and (limit_s := deadline_s - self.session.now_s()) > 0:
            await self._send_ready.wait(limit_s)
        return self.session.is_over

    async def fail_or_wait_for_slot(self, error: ClientError) -> None:
        """Fails the stream; but where the server is full or stopping, its start is enqueued again after a pause."""
        is_repeated = isinstance(error, ServerFullError | ServerDrainingError) and await self.repeat_start()
        if not is_repeated:
            with self.update() as session:
                session.rejected(error)

    async def repeat_start(self) -> bool:
        """Enqueues the stream's start again after a pause. False, at once, where it does not wait for a slot."""
        pause_s = self.session.slot_pause_s()
        if pause_s is None or await self.pause(pause_s):
            return False
        with self.update() as session:
            session.repeat_start()
        return True

    async def _wait_until(self, is_met: Callable[[], bool], wait_s: float) -> None:
        """Returns when `is_met`, at a failure, or after `wait_s`."""
        if is_met():
            return
        deadline_s = self.session.now_s() + wait_s
        while not is_met() and (limit_s := self.session.seconds_to_wait(deadline_s)) > 0:
            await self._results_ready.wait(limit_s)


class TaskTransport(AsyncChannel, ABC):
    """An `AsyncTransport` with a task that starts with the stream's first request."""

    def __init__(self, stream_id: StreamId, endpoint: Endpoint, timeout_s: float):
        super().__init__(stream_id, endpoint.url, timeout_s, endpoint.options.wait_for_slot_s)
        self._endpoint = endpoint
        self._stream_id = stream_id
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _run(self) -> None:
        """Sends the channel's requests and delivers the replies."""

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError."""
        await super().send(request)
        if self._task is None:
            self._task = asyncio.create_task(self._run_to_end(), name=f"penstock {self._stream_id}")

    async def close(self) -> None:
        """Cancels, and frees everything within CLOSE_TIMEOUT_S + JOIN_TIMEOUT_S. Called once."""
        self.cancel()
        if self._task is None:
            return
        try:
            await asyncio.wait([self._task], timeout=self.session.close_timeout_s)
        finally:
            self._task.cancel()  # does nothing to one that is done
        await asyncio.wait([self._task], timeout=JOIN_TIMEOUT_S)

    @property
    def _connect_retry_s(self) -> float:
        """Time during which a failed attempt to connect is repeated: not while the attempts to get a slot are."""
        return 0.0 if self.session.is_waiting_for_slot else self._endpoint.options.connect_retry_s

    async def _fail_connection(self, reason: str) -> bool:
        """Fails the stream because its connection did. If no server was reached, the error names what answers there.

        True where the stream waits for a slot instead: connect again, its start is enqueued.
        """
        if self.session.is_waiting_for_slot and await self.repeat_start():
            return True
        if self.session.is_unreached:
            reason = await asyncio.to_thread(explain, self._endpoint, reason)
        with self.update() as session:
            session.connection_lost(reason)
        return False

    async def _run_to_end(self) -> None:
        try:
            await self._run()
        finally:
            with self.update() as session:
                session.ended_by_server()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
