"""Streams over HTTP: one kept-alive connection for each, and one POST for each piece, answered before the next.

The bodies are tritonclient's. The connection is the standard library's, because a piece must never be sent twice
(the server would decode it twice) and the HTTP client below tritonclient repeats requests when a connection breaks.
"""

import http.client
import json
import queue
import selectors
import socket
import threading
from contextlib import suppress
from urllib.parse import quote

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerFullError,
    ServerUnreachableError,
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

_HEADER_LENGTH = "Inference-Header-Content-Length"


class HttpConnection:
    """The way to one server's HTTP port; `url` is host:port. Holds nothing open itself."""

    def __init__(self, url: str, model: str = MODEL_NAME):
        self._url = url
        self._model = model

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "HttpStream":
        """A stream that connects with its first piece."""
        return HttpStream(self._url, self._model, stream_id, timeout_s)

    def close(self) -> None:
        """Nothing is shared."""


class HttpStream:
    """One stream as a row of POSTs, made by a thread of its own."""

    def __init__(self, url: str, model: str, stream_id: StreamId, timeout_s: float):
        self._url = url
        self._model = model
        self._stream_id = stream_id
        self._timeout_s = timeout_s
        self._mailbox = Mailbox(stream_id, url, timeout_s)
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._connection = http.client.HTTPConnection(url, timeout=timeout_s)
        self._is_ending = self._is_closed = False
        self._has_posted = False
        self._poster = threading.Thread(target=self._post_pieces, name=f"penstock {stream_id}", daemon=True)
        self._poster.start()

    @property
    def is_complete(self) -> bool:
        """See Transport."""
        return self._mailbox.is_complete

    def send(self, piece: Piece) -> None:
        """See Transport."""
        self._mailbox.announce(piece)
        self._pieces.put(piece)

    def receive(self, wait_s: float | None) -> Result | None:
        """See Transport."""
        return self._mailbox.take(wait_s)

    def close(self) -> None:
        """See Transport."""
        self._is_ending = True  # what is queued is dropped, but for the end
        if self._mailbox.is_unfinished:
            self._pieces.put(END_PIECE)
        self._pieces.put(None)
        self._poster.join(FAREWELL_S if self._has_posted else 0.0)
        self._is_closed = True
        sock = self._connection.sock
        if sock is not None and self._poster.is_alive():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a reply
        self._poster.join(JOIN_S)

    def _post_pieces(self) -> None:
        try:
            for piece in iter(self._pieces.get, None):
                if not self._is_ending or (piece.is_last and self._has_posted):
                    self._exchange(piece)
                if piece.is_last:
                    break
        except (OSError, http.client.HTTPException) as error:
            self._mailbox.fail(self._failure(error))
        finally:
            self._mailbox.fail(ConnectionLostError(self._stream_id, "the stream was closed"))
            self._connection.close()

    def _exchange(self, piece: Piece) -> None:
        try:
            self._connect()
            self._mailbox.deliver(self._post(piece))
        except ClientError as error:
            self._is_ending = True
            self._mailbox.fail(error)

    def _connect(self) -> None:
        """Connects where there is no connection, or only one that the server has closed while it was idle."""
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()
        if self._is_closed:
            raise ConnectionLostError(self._stream_id, "the stream was closed")

    def _post(self, piece: Piece) -> Result:
        body, header_length = request_body(self._stream_id, piece)
        headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(header_length)}
        self._has_posted = True
        self._connection.request("POST", f"/v2/models/{quote(self._model)}/infer", body, headers)
        response = self._connection.getresponse()
        return self._result(response.status, response.getheader(_HEADER_LENGTH), response.read())

    def _result(self, status: int, header_length: str | None, body: bytes) -> Result:
        if status != http.HTTPStatus.OK:
            raise self._refusal(status, body)
        try:
            reply = InferenceServerClient.parse_response_body(
                body, header_length=None if header_length is None else int(header_length)
            )
        except (InferenceServerException, ValueError, KeyError, TypeError) as error:
            raise ProtocolError(self._stream_id, f"the server's reply cannot be read: {error}") from error
        return parse_reply(self._stream_id, reply.as_numpy)

    def _refusal(self, status: int, body: bytes) -> ClientError:
        try:
            message = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return ServerUnreachableError(self._url, f"HTTP status {status} without a message from Triton")
        error = refusal(self._stream_id, str(message), self._model)
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            return ServerFullError(self._stream_id, error.message)
        return error

    def _failure(self, error: OSError | http.client.HTTPException) -> ClientError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError) and self._connection.sock is not None:
            return ReplyTimeoutError(
                self._stream_id, f"no reply from the server at {self._url} for {self._timeout_s:g} s"
            )
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            reason = "what answers there does not speak HTTP"
        if self._mailbox.has_replies:
            return ConnectionLostError(self._stream_id, f"lost the server at {self._url}: {reason}")
        return ServerUnreachableError(self._url, reason)


def request_body(stream_id: StreamId, piece: Piece) -> tuple[bytes, int]:
    """The POST body that carries a piece, and the length of the JSON header it starts with."""
    audio = InferInput(INPUT_NAME, [1, piece.samples], INPUT_DATATYPE)
    audio.set_data_from_numpy(np.frombuffer(piece.audio, "<f4")[None])
    return InferenceServerClient.generate_request_body(
        [audio],
        sequence_id=stream_id,
        sequence_start=piece.is_first,
        sequence_end=piece.is_last,
        parameters=dict(piece.parameters),
    )


def _is_readable(sock: socket.socket) -> bool:
    """True where an idle connection has something to read: its end, since nothing was asked."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))
