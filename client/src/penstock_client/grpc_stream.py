"""Streams over gRPC for threads: one call for each, on one connection that all streams of a client share."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from penstock_client.endpoint import Endpoint
from penstock_client.errors import StreamError, StreamId
from penstock_client.grpc_wire import call_metadata, model_request, open_channel, read_reply, reason
from penstock_client.mailbox import Mailbox
from penstock_client.protocol import Piece, Result
from penstock_client.transport import JOIN_S

_CONNECTING = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


class GrpcConnection:
    """The connection to one server's gRPC port."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.has_been_ready = False
        """True once the channel had a connection; a stream after that does not wait to see it."""
        self._channel = open_channel(grpc, endpoint)
        self._watching = threading.Lock()
        self._watchers = 0
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "GrpcStream":
        """See Connection. The stream connects with its first piece."""
        return GrpcStream(self, stream_id, timeout_s)

    def watch(self, states: "queue.SimpleQueue[grpc.ChannelConnectivity | None]") -> None:
        """Connects, and puts each state of the channel into the queue.

        Only one watcher asks for the connection: the library's thread that looks after the watchers would carry out a
        second wish even after the last one has gone, and stumble over a channel that is closed by then.
        """
        with self._watching:
            self._watchers += 1
            self._channel.subscribe(states.put, try_to_connect=self._watchers == 1 and not self.has_been_ready)

    def unwatch(self, states: "queue.SimpleQueue[grpc.ChannelConnectivity | None]") -> None:
        """Ends what `watch` began."""
        with self._watching:
            self._watchers -= 1
            self._channel.unsubscribe(states.put)

    def close(self) -> None:
        """Ends the calls that are left, and the connection."""
        self._channel.close()


class GrpcStream:
    """One stream as one call. Replies are read by a thread of its own, which makes the call once it can be made."""

    def __init__(self, connection: GrpcConnection, stream_id: StreamId, timeout_s: float):
        self._connection = connection
        self._endpoint = connection.endpoint
        self._stream_id = stream_id
        self._mailbox = Mailbox(stream_id, self._endpoint.url, timeout_s)
        self._states: queue.SimpleQueue[grpc.ChannelConnectivity | None] = queue.SimpleQueue()
        self._calling = threading.Lock()
        self._call: grpc.Call | None = None
        self._reader = threading.Thread(target=self._run, name=f"penstock {stream_id}", daemon=True)
        self._reader.start()

    @property
    def is_complete(self) -> bool:
        """See Transport."""
        return self._mailbox.is_complete

    def send(self, piece: Piece) -> None:
        """See Transport."""
        self._mailbox.announce(piece)

    def receive(self, wait_s: float | None) -> Result | None:
        """See Transport."""
        return self._mailbox.take(wait_s)

    def cancel(self) -> None:
        """See Transport."""
        self._mailbox.leave()
        self._states.put(None)

    def close(self) -> None:
        """See Transport."""
        self.cancel()
        self._reader.join(self._mailbox.farewell_s)
        with self._calling:
            if self._call:
                self._call.cancel()  # does nothing to a call that has ended
        self._reader.join(JOIN_S)

    def _run(self) -> None:
        try:
            if self._mailbox.has_more() and (call := self._connect()) is not None:
                self._read(call)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._connection.has_been_ready = False
            self._mailbox.lose(reason(error))
        except ValueError as error:  # the library's word for a channel that was closed meanwhile
            self._mailbox.lose(str(error))
        finally:
            self._mailbox.end()

    def _connect(self) -> Iterable[service_pb2.ModelStreamInferResponse] | None:
        """Makes the call, after waiting for the connection for as long as it is to be tried.

        Where there is none, the call then says why. None where the user has gone meanwhile.
        """
        if not self._connection.has_been_ready:
            self._connection.watch(self._states)
            try:
                self._connection.has_been_ready = self._is_ready_in_time()
            finally:
                self._connection.unwatch(self._states)
        with self._calling:
            if self._mailbox.is_over:
                return None
            self._mailbox.note_connection()
            stub, metadata = self._connection.stub, call_metadata(self._endpoint.options)
            self._call = stub.ModelStreamInfer(self._requests(), metadata=metadata)
            replies: Iterable[service_pb2.ModelStreamInferResponse] = self._call
            return replies

    def _is_ready_in_time(self) -> bool:
        """Whether the channel gets a connection. A failed attempt is tried again, by the channel, within the time."""
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

    def _requests(self) -> Iterator[service_pb2.ModelInferRequest]:
        for piece in self._mailbox.pieces():
            yield model_request(self._endpoint.model, self._stream_id, piece)

    def _read(self, call: Iterable[service_pb2.ModelStreamInferResponse]) -> None:
        for reply in call:
            try:
                self._mailbox.deliver(read_reply(self._endpoint.model, self._stream_id, reply))
            except StreamError as error:
                self._mailbox.fail(error)
