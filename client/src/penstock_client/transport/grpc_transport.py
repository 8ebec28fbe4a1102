"""Streams over gRPC: messages, channels, and a transport for asyncio with one call per stream.

All streams of a client share one connection. A ModelStreamInfer call carries one of them: the server writes the
responses of a call in the order of its requests, so streams that share a call would delay each other. Calls use
tritonclient's generated stub: `InferenceServerClient` has one stream per client object and leaks a thread per cancelled
stream.
"""

import asyncio
import os
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client.connection import ConnectionOptions, Endpoint, read_pem
from penstock_client.errors import ProtocolError, ServerUnreachableError, StreamError, StreamId
from penstock_client.protocol import (
    INPUT_DATATYPE,
    INPUT_NAME,
    MAX_REPLY_BYTES,
    OUTPUTS_WITHIN_SEGMENT,
    Request,
    Result,
)
from penstock_client.replies import parse_results, stream_error
from penstock_client.transport.async_channel import TaskTransport
from penstock_client.transport.probe import NOT_A_SERVER

_CHANNEL_OPTIONS = (
    # Without these the clients of one process share a connection, and a back-off of up to minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
)
_KEEPALIVE_TIMEOUT_MS = 10_000

_FORKED = "this process was forked from one that uses gRPC: start processes by 'spawn', or use protocol 'http'"
_aio_process: dict[str, int] = {}

_FORMATS: dict[str, Any] = {"INT32": "i", "INT64": "q", "FP32": "f", "BOOL": "?"}
_WITHIN_SEGMENT = {
    name: service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in OUTPUTS_WITHIN_SEGMENT
}
_LENGTH = struct.Struct("<I")
_PARAMETER_FIELDS = {str: "string_param", int: "int64_param", float: "double_param", bool: "bool_param"}


def channel_options(options: ConnectionOptions) -> list[tuple[str, int]]:
    """The options of a channel. By gRPC's default, probes are sent only while there are open streams."""
    if not options.keepalive_s:
        return [*_CHANNEL_OPTIONS]
    return [
        *_CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", max(1, round(1000 * options.keepalive_s))),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
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
    return module.secure_channel(endpoint.url, _credentials(endpoint.options), options=options)


def check_certificates(endpoint: Endpoint) -> None:
    """Raises ValueError for certificate files that a channel could not use."""
    if endpoint.is_secure:
        _credentials(endpoint.options)


def call_metadata(options: ConnectionOptions) -> tuple[tuple[str, str], ...]:
    """The headers of a call."""
    return tuple(options.headers.items())


def model_request(
    model: str, stream_id: StreamId, request: Request, outputs: Collection[str] = ()
) -> service_pb2.ModelInferRequest:
    """The message that carries a request; `outputs`: the names of those that the server has, as far as known.

    A server rejects a request for an output that it does not have, as those of earlier versions do.
    """
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name=INPUT_NAME, datatype=INPUT_DATATYPE, shape=[1, request.samples])
    message.raw_input_contents.append(request.audio)
    if not (request.is_final or request.has_alternatives):
        message.outputs.extend(one for name, one in _WITHIN_SEGMENT.items() if name in outputs)
    if isinstance(stream_id, str):
        message.parameters["sequence_id"].string_param = stream_id
    else:
        message.parameters["sequence_id"].int64_param = stream_id
    message.parameters["sequence_start"].bool_param = request.is_start
    message.parameters["sequence_end"].bool_param = request.is_end
    for name, value in request.parameters.items():
        setattr(message.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    return message


def read_reply(stream_id: StreamId, reply: service_pb2.ModelStreamInferResponse) -> list[Result]:
    """The results that a reply holds. Raises StreamError for a server's error."""
    if reply.error_message:
        raise stream_error(stream_id, reply.error_message)
    return parse_results(stream_id, output_values(reply.infer_response))


def output_names(reply: service_pb2.ModelStreamInferResponse) -> frozenset[str]:
    """The outputs in a reply: all that the server has, where the request named none."""
    return frozenset(output.name for output in reply.infer_response.outputs)


def output_values(response: service_pb2.ModelInferResponse) -> Callable[[str], list[Any] | None]:
    """Returns an output's values by its name, None for a missing one; ValueError and KeyError for unreadable ones."""
    outputs = zip(response.outputs, response.raw_output_contents, strict=False)
    contents = {output.name: (output.datatype, content) for output, content in outputs}

    def values(name: str) -> list[Any] | None:
        return _values(*contents[name]) if name in contents else None

    return values


def reason(error: grpc.RpcError) -> str:
    """The reason why a call ended, as gRPC gives it, unless the server does not know the call."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NOT_A_SERVER["grpc"]
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


def _credentials(options: ConnectionOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(options.root_certificates),
        private_key=read_pem(options.client_key),
        certificate_chain=read_pem(options.client_certificate),
    )


_CONNECTING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_MIN_POLL_S, _MAX_POLL_S = 0.002, 0.05
_LOST_STATUS = "Internal error from Core"
_STATUS_S = 5.0


class AsyncGrpcConnection:
    """The connection to one server's gRPC port. The first stream opens its channel, in that stream's event loop."""

    def __init__(self, endpoint: Endpoint):
        check_certificates(endpoint)
        self._endpoint = endpoint
        self._grpc_channel: grpc.aio.Channel | None = None

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "AsyncGrpcTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        if self._grpc_channel is None:
            self._grpc_channel = open_channel(grpc.aio, self._endpoint)
        return AsyncGrpcTransport(self._endpoint, self._grpc_channel, stream_id, timeout_s)

    async def close(self) -> None:
        """Ends the remaining calls and the connection."""
        if self._grpc_channel is not None:
            await self._grpc_channel.close()


class AsyncGrpcTransport(TaskTransport):
    """One stream as one call."""

    def __init__(self, endpoint: Endpoint, grpc_channel: grpc.aio.Channel, stream_id: StreamId, timeout_s: float):
        super().__init__(stream_id, endpoint, timeout_s)
        self._grpc_channel = grpc_channel
        self._outputs: frozenset[str] = frozenset()
        """Those that the server has; empty before the first reply."""

    async def _run(self) -> None:
        while True:
            try:
                await self._wait_for_connection()
                if not self.session.is_over:
                    await self._call()
                if not self.session.is_waiting_for_slot:
                    return
                failure = "the server ended the call"
            except grpc.RpcError as error:
                if is_too_large(error):
                    unreadable = ProtocolError(self._stream_id, f"the server's reply cannot be read: {reason(error)}")
                    with self.update() as session:
                        session.fail(unreadable)
                    return
                failure = reason(await self._status_of(error))
            except grpc.aio.UsageError as error:  # the channel was closed meanwhile
                failure = str(error)
            if not await self._fail_connection(failure):
                return

    async def _status_of(self, error: grpc.RpcError) -> grpc.RpcError:
        """The server's error. gRPC loses it where a write fails before it arrives: another call gets it."""
        if error.details() != _LOST_STATUS or not self.session.is_unreached:
            return error
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._grpc_channel)
        try:
            await stub.ServerLive(
                service_pb2.ServerLiveRequest(), metadata=call_metadata(self._endpoint.options), timeout=_STATUS_S
            )
        except grpc.RpcError as failure:
            return failure
        return error

    async def _wait_for_connection(self) -> None:
        """Returns with a connection, or without one in time: the error of the call that is then made says why."""
        deadline_s = time.monotonic() + self._connect_retry_s
        has_failed = False
        poll_s = _MIN_POLL_S
        while (state := self._grpc_channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            has_failed |= state not in _CONNECTING
            if (has_failed and time.monotonic() >= deadline_s) or await self.pause(poll_s):
                return
            poll_s = min(1.5 * poll_s, _MAX_POLL_S)

    async def _call(self) -> None:
        """Sends the requests and delivers the replies, until the call ends."""
        with self.update() as session:
            session.connected()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._grpc_channel)
        call = stub.ModelStreamInfer(metadata=call_metadata(self._endpoint.options))
        sending = asyncio.create_task(self._send_requests(call), name=f"penstock {self._stream_id} requests")
        try:
            async for reply in call:
                try:
                    results = read_reply(self._stream_id, reply)
                    self._outputs = self._outputs or output_names(reply)
                    with self.update() as session:
                        session.deliver(*results)
                except StreamError as error:
                    await self.fail_or_wait_for_slot(error)
        finally:
            sending.cancel()  # else it would take requests from a later call
            call.cancel()  # does nothing to a call that has ended

    async def _send_requests(self, call: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        """Ends with the call, whose reader reports why."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            async for request in self.requests():
                await call.write(model_request(self._endpoint.model, self._stream_id, request, self._outputs))
            await call.done_writing()
