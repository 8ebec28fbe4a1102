"""gRPC: calls, channels, messages and their values.

Calls use tritonclient's generated stub: `InferenceServerClient` leaks a thread per cancelled stream.
"""

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client import limits
from penstock_client.batched.call import CallLostError, RawReply, UnreadableReplyError, Values
from penstock_client.batched.rows import Row, RowsMessage, rows_message
from penstock_client.connection import ConnectionOptions, Endpoint, read_pem
from penstock_client.protocol import MAX_REPLY_BYTES, NOT_A_SERVER
from penstock_common.errors import ServerUnreachableError

_CHANNEL_OPTIONS = (
    # Without these the clients of one process share a connection, and a back-off of up to minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", round(1000 * limits.FIRST_PAUSE_S)),
    ("grpc.max_reconnect_backoff_ms", round(1000 * limits.LONGEST_PAUSE_S)),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
)

_FORKED = "this process was forked from one that uses gRPC: start processes by 'spawn', or use protocol 'http'"
_aio_process: dict[str, int] = {}

_FORMATS: dict[str, Any] = {"INT32": "i", "INT64": "q", "FP32": "f", "BOOL": "?"}
_LENGTH = struct.Struct("<I")


def channel_options(options: ConnectionOptions) -> list[tuple[str, int]]:
    """The options of a channel. By gRPC's default, probes are sent only while there are open streams."""
    if not options.keepalive_s:
        return [*_CHANNEL_OPTIONS]
    return [
        *_CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", max(1, round(1000 * options.keepalive_s))),
        ("grpc.keepalive_timeout_ms", round(1000 * limits.KEEPALIVE_ANSWER_S)),
    ]


def open_channel(module: Any, endpoint: Endpoint) -> Any:
    """A channel of `module`, which is `grpc` or `grpc.aio`. It connects when it is used.

    Raises ServerUnreachableError for `grpc.aio` in a process that was forked from one that uses it: they would share
    its sockets, and both would lose replies.
    """
    if module is grpc.aio and _aio_process.setdefault("id", os.getpid()) != os.getpid():
        raise ServerUnreachableError(endpoint.url, _FORKED)
    options = channel_options(endpoint.options)
    if not endpoint.is_secure:
        return module.insecure_channel(endpoint.url, options=options)
    return module.secure_channel(endpoint.url, channel_credentials(endpoint.options), options=options)


class Channel:
    """A gRPC channel, which is closed with the last of its calls."""

    def __init__(self, endpoint: Endpoint):
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
    """Requests on their way; rows beyond them wait, and share a later request."""

    def __init__(self, endpoint: Endpoint, channel: Channel):
        self._model, self.channel = endpoint.model, channel
        channel.calls += 1
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel.channel)
        self._call = stub.ModelStreamInfer(metadata=tuple(endpoint.options.headers.items()))

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request. Raises nothing where the call is lost: `replies` does."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader reports why
            await self._call.write(infer_message(self._model, rows_message(client_id, rows)))

    async def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come. Raises CallLostError and UnreadableReplyError."""
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


def infer_message(model: str, rows: RowsMessage) -> service_pb2.ModelInferRequest:
    """The message that carries rows of many streams."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, datatype, values in rows.tensors:
        message.inputs.add(name=name, datatype=datatype, shape=values.shape)
        message.raw_input_contents.append(values.tobytes())
    for name, text in rows.parameters.items():
        message.parameters[name].string_param = text
    return message


def output_values(response: service_pb2.ModelInferResponse) -> Values:
    """Returns an output's values by its name, None for a missing one; ValueError and KeyError for unreadable ones."""
    outputs = zip(response.outputs, response.raw_output_contents, strict=False)
    contents = {output.name: (output.datatype, content) for output, content in outputs}

    def values(name: str) -> list[Any] | None:
        return _values(*contents[name]) if name in contents else None

    return values


def reason(error: grpc.RpcError) -> str:
    """The reason why a call ended, as gRPC gives it, unless the server does not know the call."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NOT_A_SERVER
    return str(error.details() or error.code().name)


def is_too_large(error: grpc.RpcError) -> bool:
    """True where a call ended because its reply is larger than MAX_REPLY_BYTES. A server could also be exhausted."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in str(error.details())


def _values(datatype: str, content: bytes) -> list[Any]:
    """The values of an output. tritonclient's `InferResult` takes several times as long, mostly to build arrays."""
    if not content:
        return []
    if datatype == "BYTES":
        return _texts(content)
    return memoryview(content).cast(_FORMATS[datatype]).tolist()


def _texts(content: bytes) -> list[bytes]:
    """Splits BYTES elements: each is a little-endian 32-bit length and the text."""
    texts, begin = [], 0
    while begin < len(content):
        (length,) = _LENGTH.unpack_from(content, begin)
        begin += _LENGTH.size + length
        texts.append(content[begin - length : begin])
    if begin != len(content):
        raise ValueError("a text is truncated")
    return texts


def channel_credentials(options: ConnectionOptions) -> grpc.ChannelCredentials:
    """The certificates of a secure channel. ValueError for files that cannot be used."""
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(options.root_certificates),
        private_key=read_pem(options.client_key),
        certificate_chain=read_pem(options.client_certificate),
    )
