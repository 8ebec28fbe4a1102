"""Streams over gRPC for asyncio: one call for each, on one connection that all streams of a client share."""

import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client.async_mailbox import AsyncMailbox
from penstock_client.async_transport import AsyncTaskTransport
from penstock_client.endpoint import Endpoint
from penstock_client.errors import StreamError, StreamId
from penstock_client.grpc_wire import (
    call_metadata,
    check_certificates,
    model_request,
    open_channel,
    read_reply,
    reason,
)

_CONNECTING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_FIRST_LOOK_S, _LAST_LOOK_S = 0.002, 0.05


class AsyncGrpcConnection:
    """The connection to one server's gRPC port. Its channel is opened by the first stream, in that one's event loop."""

    def __init__(self, endpoint: Endpoint):
        check_certificates(endpoint)
        self.endpoint = endpoint
        self.channel: grpc.aio.Channel | None = None

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "AsyncGrpcStream":
        """See Connection."""
        if self.channel is None:
            self.channel = open_channel(grpc.aio, self.endpoint)
        return AsyncGrpcStream(self, self.channel, stream_id, timeout_s)

    async def close(self) -> None:
        """Ends the calls that are left, and the connection."""
        if self.channel is not None:
            await self.channel.close()


class AsyncGrpcStream(AsyncTaskTransport):
    """One stream as one call."""

    def __init__(
        self, connection: AsyncGrpcConnection, channel: grpc.aio.Channel, stream_id: StreamId, timeout_s: float
    ):
        super().__init__(stream_id, AsyncMailbox(stream_id, connection.endpoint.url, timeout_s))
        self._endpoint = connection.endpoint
        self._channel = channel

    async def _run(self) -> None:
        try:
            await self._wait_for_connection()
            if not self._mailbox.is_over:
                await self._read()
        except grpc.RpcError as error:
            self._mailbox.lose(reason(error))
        except grpc.aio.UsageError as error:  # the channel was closed meanwhile
            self._mailbox.lose(str(error))

    async def _wait_for_connection(self) -> None:
        """Returns when there is one, or none within the time for it: the call that is made then says why."""
        deadline_s = time.monotonic() + self._endpoint.options.connect_retry_s
        has_failed = False
        look_s = _FIRST_LOOK_S
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            has_failed |= state not in _CONNECTING
            if (has_failed and time.monotonic() >= deadline_s) or await self._mailbox.rest(look_s):
                return
            look_s = min(1.5 * look_s, _LAST_LOOK_S)

    async def _requests(self) -> AsyncIterator[service_pb2.ModelInferRequest]:
        async for piece in self._mailbox.pieces():
            yield model_request(self._endpoint.model, self._stream_id, piece)

    async def _read(self) -> None:
        self._mailbox.note_connection()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        call = stub.ModelStreamInfer(self._requests(), metadata=call_metadata(self._endpoint.options))
        try:
            async for reply in call:
                try:
                    self._mailbox.deliver(read_reply(self._endpoint.model, self._stream_id, reply))
                except StreamError as error:
                    self._mailbox.fail(error)
        finally:
            call.cancel()  # does nothing to a call that has ended
