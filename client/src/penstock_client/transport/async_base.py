"""The seam between a stream and a network protocol in asyncio: the promises of `base`, with methods to await."""

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from penstock_client.connection import Endpoint
from penstock_client.errors import StreamId
from penstock_client.protocol import Request, Result
from penstock_client.transport.async_channel import AsyncChannel
from penstock_client.transport.probe import explain

JOIN_TIMEOUT_S = 1.0
"""Time for which closing waits for a transport's task once its network call is interrupted."""


class AsyncTransport(Protocol):
    """Carries one stream to the server and back. Replies come in the order of the requests."""

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError."""

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""

    async def close(self) -> None:
        """Cancels, and frees everything within CLOSE_TIMEOUT_S + JOIN_TIMEOUT_S. Called once."""


class AsyncConnection(Protocol):
    """The connection to one server; made anywhere, used in one event loop."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> AsyncTransport:
        """A transport for a new stream. It connects with its first request, so errors appear there."""

    async def close(self) -> None:
        """Frees what the transports share."""


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
