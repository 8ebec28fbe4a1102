"""Streams that survive a lost connection: a new stream on the server receives the current segment again."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import chain

from penstock_client.connection import Endpoint
from penstock_client.errors import ClientError, StreamError, StreamId
from penstock_client.protocol import MAX_STRING_ID_BYTES, Request, Result
from penstock_client.transport.async_channel import AsyncSignal
from penstock_client.transport.base import AsyncConnection, AsyncTransport
from penstock_client.transport.replay import Replay
from penstock_client.transport.server_offer import ServerChunks

RESUMABLE = {
    "AUDIO_MEMORY_FULL",
    "CONNECTION_LOST",
    "PHRASE_MEMORY_FULL",
    "REPLY_TIMEOUT",
    "SERVER_DRAINING",
    "SERVER_UNREACHABLE",
    "STREAM_LIMIT",
    "STREAM_LOST",
    "STREAM_NOT_OPEN",
}
"""The codes of errors after which another stream may succeed, once this one has had results."""
_RESUMABLE_WHILE_LOST = {*RESUMABLE, StreamError.code}
"""Triton's own errors as well: a server that stops or starts has them for a model that is not loaded."""
_PAUSE_S = 0.5
_LOG = logging.getLogger("penstock_client")


def connect(endpoint: Endpoint, chunks: ServerChunks | None = None) -> AsyncConnection:
    """The connection for an endpoint. Imports the library of its protocol only. ValueError for bad certificates.

    `chunks` are forgotten when the connection is lost.
    """
    connection = _connect_once(endpoint)
    reconnect_s = endpoint.options.reconnect_s
    if not reconnect_s:
        return connection
    return ResumingConnection(connection, reconnect_s, chunks or ServerChunks(endpoint))


def _connect_once(endpoint: Endpoint) -> AsyncConnection:
    if endpoint.is_grpc:
        from penstock_client.transport.grpc_transport import AsyncGrpcConnection

        return AsyncGrpcConnection(endpoint)
    from penstock_client.transport.http_transport import AsyncHttpConnection

    return AsyncHttpConnection(endpoint)


class ResumingConnection:
    """A connection whose streams reconnect for up to `reconnect_s`. Each reconnection is logged as a warning."""

    def __init__(self, connection: AsyncConnection, reconnect_s: float, chunks: ServerChunks):
        self._connection = connection
        self._reconnect_s = reconnect_s
        self._chunks = chunks

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "ResumingTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        ids = chain([stream_id], _more_ids(stream_id))
        return ResumingTransport(
            lambda: self._connection.open_transport(next(ids), timeout_s), self._reconnect_s, self._chunks
        )

    async def close(self) -> None:
        """Frees what the transports share."""
        await self._connection.close()


def _more_ids(stream_id: StreamId) -> Iterator[StreamId]:
    """Ids for the streams that continue this one. Its own may still receive requests that the network has delayed."""
    while True:
        unique = uuid.uuid4().hex
        derived = f"{stream_id}-{unique[:8]}"
        yield derived if len(derived.encode()) <= MAX_STRING_ID_BYTES else unique


class ResumingTransport:
    """One stream as a series of streams on the server, of which each continues the one before. An `AsyncTransport`."""

    def __init__(
        self,
        open_transport: Callable[[], AsyncTransport],
        reconnect_s: float,
        chunks: ServerChunks | None = None,
    ):
        self._open_transport = open_transport
        self._reconnect_s = reconnect_s
        self._chunks = chunks
        self._transport = open_transport()
        self._attempt = self._transport
        """The newest stream on the server, which may still be sent what the caller has sent before."""
        self._replay = Replay[Request]()
        self._sending = asyncio.Lock()
        """Held while requests are sent and while the stream is resumed, so that each is sent once and in order."""
        self._lost_s: float | None = None
        """Time at which the connection was lost; None once there is a result again."""
        self._is_cancelled = False
        self._cancelled = AsyncSignal()

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        return self._transport.is_complete

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError."""
        async with self._sending:
            self._replay.add(request)
            transport = self._transport
            try:
                try:
                    await transport.send(request)
                except ClientError as error:
                    await self._resume(transport, error)
            except asyncio.CancelledError:
                self._replay.forget_newest()  # it was not sent
                raise

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError. While the stream is resumed it takes longer than `wait_s`.
        """
        while True:
            transport = self._transport
            try:
                result = await transport.receive(wait_s)
            except ClientError as error:
                async with self._sending:
                    await self._resume(transport, error)
                continue
            if result is None:
                return None
            if transport is not self._attempt:
                continue  # another task has begun to repeat the request
            start_s = self._replay.start_s
            taken = self._replay.new_result(result)
            if taken is not None:
                self._note_success(start_s)
                return taken

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        self._is_cancelled = True
        self._cancelled.give()
        for transport in (self._transport, self._attempt):
            transport.cancel()

    async def close(self) -> None:
        """Cancels, and frees everything."""
        self.cancel()
        async with self._sending:  # a resumption ends now
            await self._transport.close()

    async def _resume(self, lost: AsyncTransport, error: ClientError) -> None:
        """Goes on in a new stream. Raises the error where that is impossible, or after `reconnect_s`."""
        while lost is self._transport:  # else another task has resumed it
            await self._wait_before_attempt(error)
            await lost.close()
            try:
                self._transport = await self._repeat()
            except ClientError as next_error:
                error = next_error

    async def _repeat(self) -> AsyncTransport:
        """A new stream that was sent the current segment. Raises ClientError, and an interruption by the user."""
        geometry = await self._chunks.get_async() if self._chunks and self._replay.needs_geometry else None
        attempt = self._attempt = self._open_transport()
        requests = self._replay.restart(geometry)
        try:
            for request in requests:
                await attempt.send(request)
        except BaseException:
            await attempt.close()
            raise
        return attempt

    async def _wait_before_attempt(self, error: ClientError) -> None:
        """Raises the error where no further attempt is due."""
        resumable = RESUMABLE if self._lost_s is None else _RESUMABLE_WHILE_LOST
        if error.code not in resumable or not self._replay.has_results or self._is_cancelled:
            raise error
        now_s = time.monotonic()
        if self._lost_s is None:
            self._lost_s = now_s
            _LOG.warning("%s; reconnecting for up to %g s", error, self._reconnect_s)
        left_s = self._lost_s + self._reconnect_s - now_s
        if left_s > 0:
            await self._cancelled.wait(min(_PAUSE_S, left_s))
        if left_s <= 0 or self._is_cancelled:
            raise error

    def _note_success(self, start_s: float) -> None:
        if self._lost_s is not None:
            if self._chunks is not None:
                self._chunks.forget()
            took_s, self._lost_s = time.monotonic() - self._lost_s, None
            _LOG.warning("reconnected after %.1f s; sent again from %.2f s, nothing is missing", took_s, start_s)
