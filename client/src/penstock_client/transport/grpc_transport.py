"""Streams over gRPC for threads: one call per stream, on one connection shared by all streams of a client."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client.connection import Endpoint
from penstock_client.errors import StreamError, StreamId
from penstock_client.transport.base import ThreadTransport
from penstock_client.transport.grpc_wire import (
    call_metadata,
    model_request,
    open_channel,
    output_names,
    read_reply,
    reason,
)

_CONNECTING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
_States = queue.SimpleQueue[grpc.ChannelConnectivity | None]


class GrpcConnection:
    """The connection to one server's gRPC port."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.has_been_ready = False
        """True once the channel had a connection. A later stream does not wait for it again."""
        self._grpc_channel = open_channel(grpc, endpoint)
        self._watching = threading.Lock()
        self._watchers = 0
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._grpc_channel)

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "GrpcTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        return GrpcTransport(self, stream_id, timeout_s)

    def watch(self, states: _States) -> None:
        """Connects, and puts each state of the channel into the queue.

        Only the first watcher requests the connection. gRPC's polling thread carries out a second request even after
        the last watcher has gone, and then fails on a closed channel.
        """
        with self._watching:
            self._watchers += 1
            self._grpc_channel.subscribe(states.put, try_to_connect=self._watchers == 1 and not self.has_been_ready)

    def unwatch(self, states: _States) -> None:
        """Ends what `watch` began."""
        with self._watching:
            self._watchers -= 1
            self._grpc_channel.unsubscribe(states.put)

    def close(self) -> None:
        """Ends the remaining calls and the connection."""
        self._grpc_channel.close()


class GrpcTransport(ThreadTransport):
    """One stream as one call. Its thread makes the call once there is a connection, and reads the replies."""

    def __init__(self, connection: GrpcConnection, stream_id: StreamId, timeout_s: float):
        super().__init__(stream_id, connection.endpoint, timeout_s)
        self._connection = connection
        self._states: _States = queue.SimpleQueue()
        self._calling = threading.Lock()
        self._call: grpc.Call | None = None
        self._outputs: frozenset[str] = frozenset()
        """Those that the server has; empty before the first reply."""

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        super().cancel()
        self._states.put(None)  # wakes the thread where it waits for the connection

    def _interrupt(self) -> None:
        with self._calling:
            if self._call:
                self._call.cancel()  # does nothing to a call that has ended

    def _run(self) -> None:
        try:
            if self.wait_for_request() and (call := self._connect()) is not None:
                self._read(call)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._connection.has_been_ready = False
            self._fail_connection(reason(error))
        except ValueError as error:  # gRPC raises it for a channel that was closed meanwhile
            self._fail_connection(str(error))

    def _connect(self) -> Iterable[service_pb2.ModelStreamInferResponse] | None:
        """Waits for the connection, and makes the call; None where the stream was cancelled meanwhile.

        Without a connection in time the call is made too: its error says why there is none.
        """
        if not self._connection.has_been_ready:
            self._connection.watch(self._states)
            try:
                self._connection.has_been_ready = self._is_ready_in_time()
            finally:
                self._connection.unwatch(self._states)
        with self._calling:
            with self.update() as session:
                if session.is_over:
                    return None
                session.connected()
            stub, metadata = self._connection.stub, call_metadata(self._endpoint.options)
            self._call = stub.ModelStreamInfer(self._model_requests(), metadata=metadata)
            replies: Iterable[service_pb2.ModelStreamInferResponse] = self._call
            return replies

    def _is_ready_in_time(self) -> bool:
        """True once the channel has a connection. gRPC repeats a failed attempt, until `connect_retry_s` has passed."""
        deadline_s = time.monotonic() + self._endpoint.options.connect_retry_s
        has_failed = False
        while not has_failed or time.monotonic() < deadline_s:
            left_s = deadline_s - time.monotonic()
            with suppress(queue.Empty):
                state = self._states.get(timeout=left_s if left_s > 0 else None)  # a first attempt may take longer
                if state in (grpc.ChannelConnectivity.READY, None):
                    return state is not None
                has_failed |= state not in _CONNECTING
        return False

    def _model_requests(self) -> Iterator[service_pb2.ModelInferRequest]:
        for request in self.requests():
            yield model_request(self._endpoint.model, self._stream_id, request, self._outputs)

    def _read(self, call: Iterable[service_pb2.ModelStreamInferResponse]) -> None:
        for reply in call:
            try:
                results = read_reply(self._stream_id, reply)
                self._outputs = self._outputs or output_names(reply)
                with self.update() as session:
                    session.deliver(*results)
            except StreamError as error:
                self.fail_or_wait_for_slot(error)
