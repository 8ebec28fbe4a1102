"""Streams over HTTP for threads: one kept-alive connection for each, one POST a piece, answered before the next."""

import http.client
import selectors
import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress

from penstock_client.connection_options import retry_pauses_s
from penstock_client.endpoint import Endpoint
from penstock_client.errors import ClientError, StreamId
from penstock_client.http_wire import HEADER_LENGTH, NOT_HTTP, post_of, read_response, tls_context
from penstock_client.mailbox import Mailbox
from penstock_client.protocol import Piece, Result
from penstock_client.transport import JOIN_S


class HttpConnection:
    """The way to one server's HTTP port. Holds nothing open itself."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tls = tls_context(endpoint)

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "HttpStream":
        """See Connection. The stream connects with its first piece."""
        return HttpStream(self._endpoint, self._tls, stream_id, timeout_s)

    def close(self) -> None:
        """Nothing is shared."""


class HttpStream:
    """One stream as a row of POSTs, made by a thread of its own."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, stream_id: StreamId, timeout_s: float):
        self._endpoint = endpoint
        self._stream_id = stream_id
        self._mailbox = Mailbox(stream_id, endpoint.url, timeout_s)
        if tls is None:
            self._connection = http.client.HTTPConnection(endpoint.url, timeout=timeout_s)
        else:
            self._connection = http.client.HTTPSConnection(endpoint.url, timeout=timeout_s, context=tls)
        self._is_closed = False
        self._poster = threading.Thread(target=self._run, name=f"penstock {stream_id}", daemon=True)
        self._poster.start()

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

    def close(self) -> None:
        """See Transport."""
        self.cancel()
        self._poster.join(self._mailbox.farewell_s)
        self._is_closed = True
        sock = self._connection.sock
        if sock is not None and self._poster.is_alive():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a reply
        self._poster.join(JOIN_S)

    def _run(self) -> None:
        try:
            self._post_pieces()
        except TimeoutError:
            self._mailbox.time_out()
        except (OSError, http.client.HTTPException) as error:
            self._mailbox.lose(_reason(error))
        finally:
            self._mailbox.end()
            self._connection.close()

    def _post_pieces(self) -> None:
        while self._mailbox.has_more():
            self._connect()
            if (piece := self._mailbox.next_piece()) is None:  # withdrawn meanwhile
                continue
            try:
                self._mailbox.deliver(self._post(piece))
            except ClientError as error:
                self._mailbox.fail(error)

    def _connect(self) -> None:
        """Connects where there is no connection, or only one that the server has closed while it was idle.

        Tries again where none of the stream's audio can have reached the server.
        """
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()
        if self._connection.sock is None:
            pauses_s = retry_pauses_s(self._endpoint.options.connect_retry_s) if self._mailbox.is_untouched else ()
            self._try_to_connect(pauses_s)
        if self._is_closed:
            raise ConnectionAbortedError("the stream was closed")
        self._mailbox.note_connection()

    def _try_to_connect(self, pauses_s: Iterable[float]) -> None:
        for pause_s in pauses_s:
            try:
                return self._connection.connect()
            except (TimeoutError, ssl.SSLError):  # patience has ended, or another attempt meets the same certificate
                raise
            except OSError:
                self._connection.close()
                if self._mailbox.rest(pause_s):
                    raise
        self._connection.connect()

    def _post(self, piece: Piece) -> Result:
        path, body, headers = post_of(self._endpoint, self._stream_id, piece)
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        return read_response(
            self._endpoint, self._stream_id, response.status, response.getheader(HEADER_LENGTH), response.read()
        )


def _reason(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return NOT_HTTP
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _is_readable(sock: socket.socket) -> bool:
    """True where an idle connection has something to read: its end, since nothing was asked."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))
