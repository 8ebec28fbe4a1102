"""The call that carries a link's requests: over gRPC a stream of messages, over HTTP one POST at a time.

The library of a protocol is imported when it is used.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock_client.batched.rows import Row, RowsMessage, rows_message
from penstock_client.connection import Endpoint
from penstock_common.errors import (
    ConnectionLostError,
    ProtocolError,
    ServerFullError,
    ServerUnreachableError,
    StreamError,
)

if TYPE_CHECKING:
    import aiohttp

_NAME = "batch"
Values = Callable[[str], list[Any] | None]
"""Returns an output's values by its name, None for a missing one."""


class RawReply(NamedTuple):
    """The reply to one request."""

    values: Values
    error: str = ""
    """The server's message where it has rejected the request as a whole."""


class CallLostError(Exception):
    """The call has ended; the text says why."""


class UnreadableReplyError(Exception):
    """The server's reply is too large or no reply of Triton; the text says why."""


class BatchCall(Protocol):
    """Carries requests and their replies, in order. Made in a running event loop."""

    max_unanswered: int
    """Requests on their way; rows beyond them wait, and share a later request."""

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request. Raises nothing where the call is lost: `replies` does."""

    def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come. Raises CallLostError and UnreadableReplyError."""

    def cancel(self) -> None:
        """Ends the call without waiting."""

    async def close(self) -> None:
        """Ends the call and its connection."""


def check_certificates(endpoint: Endpoint) -> None:
    """Raises ValueError for certificate files that cannot be used."""
    if endpoint.is_grpc and endpoint.is_secure:
        from penstock_client.transport.grpc_transport import channel_credentials

        channel_credentials(endpoint.options)
    elif endpoint.is_secure:
        from penstock_client.transport.http_transport import tls_context

        tls_context(endpoint)


def open_call(endpoint: Endpoint, beside: BatchCall | None = None) -> BatchCall:
    """A call of the endpoint's model, over gRPC on the channel of the call `beside`.

    Raises ServerUnreachableError in a process that was forked from one that uses gRPC.
    """
    if not endpoint.is_grpc:
        return HttpCall(endpoint)
    return GrpcCall(endpoint, beside.channel if isinstance(beside, GrpcCall) else Channel(endpoint))


class Channel:
    """A gRPC channel, which is closed with the last of its calls."""

    def __init__(self, endpoint: Endpoint):
        import grpc.aio

        from penstock_client.transport.grpc_transport import open_channel

        self.channel = open_channel(grpc.aio, endpoint)
        self.calls = 0

    async def leave(self) -> None:
        """One of its calls has ended."""
        self.calls -= 1
        if not self.calls:
            await self.channel.close()


class GrpcCall:
    """One ModelStreamInfer call."""

    max_unanswered = 64

    def __init__(self, endpoint: Endpoint, channel: Channel):
        from tritonclient.grpc import service_pb2_grpc

        from penstock_client.transport.grpc_transport import call_metadata

        self._model, self.channel = endpoint.model, channel
        channel.calls += 1
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel.channel)
        self._call = stub.ModelStreamInfer(metadata=call_metadata(endpoint.options))

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request."""
        import grpc

        from penstock_client.transport.grpc_transport import infer_message

        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader reports why
            await self._call.write(infer_message(self._model, rows_message(client_id, rows)))

    async def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come."""
        import grpc

        from penstock_client.transport.grpc_transport import is_too_large, output_values, reason

        try:
            async for reply in self._call:
                yield RawReply(output_values(reply.infer_response), reply.error_message)
        except grpc.RpcError as error:
            kind = UnreadableReplyError if is_too_large(error) else CallLostError
            raise kind(reason(error)) from error
        raise CallLostError("the server ended the call")

    def cancel(self) -> None:
        """Ends the call without waiting."""
        self._call.cancel()

    async def close(self) -> None:
        """Ends the call and its connection."""
        self._call.cancel()
        await self.channel.leave()


class HttpCall:
    """A POST for each request. The next one is sent after the reply: a proxy would not keep their order."""

    max_unanswered = 1

    def __init__(self, endpoint: Endpoint):
        from penstock_client.transport.http_transport import tls_context

        self._endpoint, self._tls = endpoint, tls_context(endpoint)
        self._session: aiohttp.ClientSession | None = None
        self._requests: asyncio.Queue[RowsMessage | None] = asyncio.Queue()
        self._posting: asyncio.Future[RawReply] | None = None
        self._is_reached = False
        """True once a server of Triton has answered."""

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request."""
        self._requests.put_nowait(rows_message(client_id, rows))

    async def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come."""
        import aiohttp

        from penstock_client.transport.http_transport import error_text, open_session

        self._session = open_session(self._tls)
        try:
            while (message := await self._requests.get()) is not None:
                self._posting = asyncio.ensure_future(self._post(self._session, message))
                yield await self._posting
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
            raise CallLostError(error_text(error)) from error
        raise CallLostError("the call was ended")

    async def _post(self, session: "aiohttp.ClientSession", message: RowsMessage) -> RawReply:
        import aiohttp

        from penstock_client.transport.http_transport import exchange, post_of_rows

        post, unlimited = post_of_rows(self._endpoint, message), aiohttp.ClientTimeout(total=None)
        try:
            outputs = await exchange(session, self._endpoint, _NAME, post, timeout=unlimited)  # a link has own limits
        except ServerUnreachableError as error:
            if not self._is_reached:
                raise CallLostError(error.reason) from error
            # A proxy answers in the server's place, and other requests may succeed.
            return _rejected(ConnectionLostError.code, f"lost the connection to the server: {error.reason}")
        except ProtocolError as error:
            raise UnreadableReplyError(error.message.removeprefix("the server's reply cannot be read: ")) from error
        except StreamError as error:
            self._is_reached = True
            is_full = isinstance(error, ServerFullError) and error.code == StreamError.code  # by its status
            return _rejected(ServerFullError.code if is_full else error.code, error.message)
        self._is_reached = True

        def values(name: str) -> list[Any] | None:
            output = outputs(name)
            return None if output is None else np.asarray(output).ravel().tolist()

        return RawReply(values)

    def cancel(self) -> None:
        """Ends the call without waiting."""
        self._requests.put_nowait(None)
        if self._posting is not None:
            self._posting.cancel()

    async def close(self) -> None:
        """Ends the call and its connection."""
        self.cancel()
        if self._session is not None:
            await self._session.close()


def _rejected(code: str, message: str) -> RawReply:
    has_code = code != StreamError.code
    return RawReply(lambda name: None, f"{code}: {message}" if has_code else message)
