"""Streams over gRPC for asyncio: one call per stream, on one connection shared by all streams of a client."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client.connection import Endpoint
from penstock_client.errors import ProtocolError, StreamError, StreamId
from penstock_client.transport.async_base import TaskTransport
from penstock_client.transport.grpc_wire import (
    call_metadata,
    check_certificates,
    is_too_large,
    model_request,
    open_channel,
    output_names,
    read_reply,
    reason,
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
