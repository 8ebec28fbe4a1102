"""Streams over gRPC: one ModelStreamInfer call for each, on one connection that all streams of a client share.

The server writes a call's responses in the order of its requests, so streams sharing a call would wait for each
other. The call is made through tritonclient's generated stub: its `InferenceServerClient` has one stream for each
client object, and leaves a thread behind for each stream that is cancelled.

The header `triton_grpc_error`, which would put a status code beside an error's message, is not used: a request after
the refused one then ends tritonserver 2.51.0 with a segmentation fault.
"""

import queue
import threading

import grpc
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ServerUnreachableError,
    StreamError,
    StreamId,
)
from penstock_client.mailbox import Mailbox
from penstock_client.protocol import (
    END_PIECE,
    INPUT_DATATYPE,
    INPUT_NAME,
    MODEL_NAME,
    Piece,
    Result,
    parse_reply,
    refusal,
)
from penstock_client.transport import FAREWELL_S, JOIN_S

_CHANNEL_OPTIONS = (
    # Without these, clients of one process share a connection and the pause after a failed attempt, up to minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
)

_PARAMETER_FIELDS = {str: "string_param", int: "int64_param", float: "double_param"}


class GrpcConnection:
    """The connection to one server's gRPC port; `url` is host:port."""

    def __init__(self, url: str, model: str = MODEL_NAME):
        self._url = url
        self._model = model
        self._channel = grpc.insecure_channel(url, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "GrpcStream":
        """Starts a call."""
        return GrpcStream(self._stub, self._url, self._model, stream_id, timeout_s)

    def close(self) -> None:
        """Ends the calls that are left, and the connection."""
        self._channel.close()


class GrpcStream:
    """One stream as one call. Replies are read by a thread of its own."""

    def __init__(self, stub, url: str, model: str, stream_id: StreamId, timeout_s: float):
        self._url = url
        self._model = model
        self._stream_id = stream_id
        self._mailbox = Mailbox(stream_id, url, timeout_s)
        self._requests: queue.SimpleQueue[service_pb2.ModelInferRequest | None] = queue.SimpleQueue()
        self._call = stub.ModelStreamInfer(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name=f"penstock {stream_id}", daemon=True)
        self._reader.start()

    @property
    def is_complete(self) -> bool:
        """See Transport."""
        return self._mailbox.is_complete

    def send(self, piece: Piece) -> None:
        """See Transport."""
        self._mailbox.announce(piece)
        self._put(piece)

    def receive(self, wait_s: float | None) -> Result | None:
        """See Transport."""
        return self._mailbox.take(wait_s)

    def close(self) -> None:
        """See Transport."""
        if self._mailbox.is_unfinished:
            self._put(END_PIECE)
        if self._mailbox.is_started:
            self._reader.join(FAREWELL_S)
        self._mailbox.fail(ConnectionLostError(self._stream_id, "the stream was closed"))
        self._call.cancel()  # does nothing to a call that has ended
        self._requests.put(None)  # ends the library's thread that waits for requests
        self._reader.join(JOIN_S)

    def _put(self, piece: Piece) -> None:
        self._requests.put(model_request(self._model, self._stream_id, piece))
        if piece.is_last:
            self._requests.put(None)  # no more requests: the server ends the call after its last reply

    def _read(self) -> None:
        try:
            for reply in self._call:
                self._take_in(reply)
        except grpc.RpcError as error:
            self._mailbox.fail(self._failure(error))
        finally:
            self._mailbox.fail(ConnectionLostError(self._stream_id, f"the server at {self._url} ended the stream"))

    def _take_in(self, reply: service_pb2.ModelStreamInferResponse) -> None:
        try:
            self._mailbox.deliver(self._result(reply))
        except StreamError as error:
            self._mailbox.fail(error)

    def _result(self, reply: service_pb2.ModelStreamInferResponse) -> Result:
        if reply.error_message:
            raise refusal(self._stream_id, reply.error_message, self._model)
        return parse_reply(self._stream_id, InferResult(reply.infer_response).as_numpy)

    def _failure(self, error: grpc.RpcError) -> ClientError:
        details = error.details() or error.code().name
        if self._mailbox.has_replies:
            return ConnectionLostError(self._stream_id, f"lost the server at {self._url}: {details}")
        return ServerUnreachableError(self._url, details)


def model_request(model: str, stream_id: StreamId, piece: Piece) -> service_pb2.ModelInferRequest:
    """The request that carries a piece."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=INPUT_NAME, datatype=INPUT_DATATYPE, shape=[1, piece.samples])
    request.raw_input_contents.append(piece.audio)
    if isinstance(stream_id, str):
        request.parameters["sequence_id"].string_param = stream_id
    else:
        request.parameters["sequence_id"].int64_param = stream_id
    request.parameters["sequence_start"].bool_param = piece.is_first
    request.parameters["sequence_end"].bool_param = piece.is_last
    for name, value in piece.parameters.items():
        setattr(request.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    return request
