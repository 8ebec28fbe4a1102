"""Shared parts of the gRPC port's services: keys, which are checked before a message is read, messages, and errors."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from traceback import clear_frames
from typing import Any, TypeVar

import grpc

from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import KSERVE_NOT_SERVED, GatewayCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.security.access import only_authorization
from penstock_gateway.security.budget import Budget
from penstock_gateway.security.keys import ApiKey

Context = Any
"""grpc.aio.ServicerContext; gRPC has no types."""
MAX_METADATA_CHARS = 500
"""Clients accept 8 KiB of metadata, in which a character is up to 12 bytes."""
OPTIONS = (
    ("grpc.so_reuseport", 1),
    # None but identity: 61 kB of gzip are 64 MiB of zeros. Calls with a compressed message end with UNIMPLEMENTED.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # gRPC shows no connection before its calls, so that none can be counted for its address: those without calls are
    # closed, and all together leave descriptors for the other port.
    ("grpc.max_allowed_incoming_connections", limits.max_connections()),
    ("grpc.server_handshake_timeout_ms", round(1000 * limits.UNRESPONSIVE_S)),
    ("grpc.max_connection_idle_ms", round(1000 * limits.MAX_SILENT_S)),
    # Clients keep a silent call alive by pings, of which gRPC allows one in 5 minutes. What it does above that takes
    # time that grows with the square of their number: a minute for 2 MB. Without the limit it answers all in 0.1 s.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # A silent call may be that of a client that has vanished: the gateway's own pings tell.
    ("grpc.keepalive_time_ms", round(1000 * limits.KEEP_ALIVE_S)),
    ("grpc.keepalive_timeout_ms", round(1000 * limits.UNRESPONSIVE_S)),
    ("grpc.http2.ping_timeout_ms", round(1000 * limits.UNRESPONSIVE_S)),  # else 60 s, whatever the line above says
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of the server, beside `max_message_bytes`."""
_KSERVE = "inference.GRPCInferenceService"
_T = TypeVar("_T")
_log = logging.getLogger("penstock_gateway.grpc")
_key: ContextVar[ApiKey] = ContextVar("key")


def max_message_bytes(config: Config) -> int:
    """The largest message of any kind; streams have a smaller limit of their own."""
    return min(limits.MAX_RECOGNIZE_BYTES, config.max_upload_bytes + limits.MAX_FIELDS_BYTES)


def call_key() -> ApiKey:
    """The key of the call whose handler asks; `KeyInterceptor` has checked it."""
    return _key.get()


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Checks the key of every call by its metadata. A call without a right one ends before its message is read."""

    def __init__(self, gateway: Gateway, protocols: Mapping[str, str], open_services: Collection[str] = ()):
        """`protocols`: by service, the name of its protocol in metrics and logs.

        `open_services`: those that need no key.
        """
        self._gateway = gateway
        self._protocols = protocols
        self._open_services = open_services

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """The handler of the call; it runs in the same task, where `call_key` has its key."""
        service = call.method.rpartition("/")[0].removeprefix("/")
        if service not in self._open_services:
            try:
                key = self._gateway.access.authenticate_header(_authorization(call.invocation_metadata))
                self._count(key)
                _key.set(key)
            except GatewayError as error:
                return _rejection(self._gateway, error, self._protocols.get(service, "grpc"))
        return await continuation(call) or _unknown_method(service)

    def _count(self, key: ApiKey) -> None:
        """Counts the call until its task ends. GatewayError above the limit of the key."""
        place = contextlib.ExitStack()
        place.enter_context(self._gateway.connections.taken(key))
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: place.close())


def _authorization(metadata: Collection[tuple[str, str | bytes]] | None) -> str | None:
    """The entry of that name. GatewayError for several."""
    return only_authorization([str(value) for name, value in metadata or () if name == "authorization"])


def _unknown_method(service: str) -> Any:
    """A handler in place of gRPC's own, which leaves a traceback where the client has cancelled the call."""
    message = KSERVE_NOT_SERVED if service == _KSERVE else "Method not found!"

    async def end(_: object, context: Context) -> None:
        try:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, message)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None

    return grpc.stream_stream_rpc_method_handler(end)


def _rejection(gateway: Gateway, error: GatewayError, protocol: str) -> Any:
    """A handler that reads nothing; its kind makes no difference to the client."""

    async def reject(_: object, context: Context) -> None:
        await abort(context, gateway, protocol, error)

    return grpc.stream_stream_rpc_method_handler(reject)


@asynccontextmanager
async def rejecting(context: Context, gateway: Gateway, protocol: str) -> AsyncIterator[None]:
    """Ends the call with the status of an error.

    gRPC keeps what ends a call, and with it the frames of the error, until garbage is collected: the block's message
    belongs into a function of its own, whose frame is cleared.
    """
    try:
        try:
            yield
        except GatewayError as error:
            clear_frames(error.__traceback__)
            await abort(context, gateway, protocol, error)
        except grpc.aio.BaseError:  # the call is over already
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the client gets the status of the table
            _log.exception("a call of %s failed", protocol)
            await abort(context, gateway, protocol, GatewayError(GatewayCode.INTERNAL, "the gateway failed"))
    except grpc.aio.InternalError:  # the client has cancelled the call, and hears nothing
        raise asyncio.CancelledError from None


async def abort(context: Context, gateway: Gateway, protocol: str, error: GatewayError) -> None:
    """Ends the call with the status of this error."""
    gateway.note_rejection(protocol, error)
    trailing = (("retry-after", f"{error.retry_after_s:g}"),) if error.retry_after_s is not None else ()
    await context.abort(grpc.StatusCode[error.code.status.grpc], str(error)[:MAX_METADATA_CHARS], trailing)


@asynccontextmanager
async def only_message(context: Context, gateway: Gateway, read: Callable[[bytes], _T]) -> AsyncIterator[_T]:
    """Reads the message of a unary call, whose handler is registered as one of a stream, by `read`.

    So it is read here, and counts in the budget until the block ends. GatewayError where it waits or arrives too long:
    gRPC does not show how much of it is there.
    """
    async with gateway.messages.taken(call_key().name, max_message_bytes(gateway.config)) as reduce:
        message = await _next(context, gateway.messages)
        reduce(len(message))
        made = read(message)
        del message  # what was made of it is as large
        yield made


async def _next(context: Context, messages: Budget) -> bytes:
    try:
        data = await messages.arrival(call_key().name, context.read(), limits.MAX_SILENT_S)
    except asyncio.TimeoutError:
        message = f"the message has not arrived within {limits.MAX_SILENT_S:g} s"
        raise GatewayError(GatewayCode.STREAM_IDLE, message) from None
    if data is grpc.aio.EOF:
        raise GatewayError(GatewayCode.FIELD_INVALID, "the call has no message")
    return bytes(data)
