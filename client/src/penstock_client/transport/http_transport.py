"""Streams over HTTP for threads: one kept-alive connection per stream, one POST per request, one at a time."""

import http.client
import selectors
import socket
import ssl
from contextlib import suppress

from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_client.errors import ClientError, ServerUnreachableError, StreamId
from penstock_client.protocol import Request, Result
from penstock_client.transport.base import ThreadTransport
from penstock_client.transport.http_wire import HEADER_LENGTH, NOT_HTTP, post_of, read_response, tls_context


class HttpConnection:
    """The address of one server's HTTP port. Each transport opens a connection of its own."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tls = tls_context(endpoint)

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "HttpTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        return HttpTransport(self._endpoint, self._tls, stream_id, timeout_s)

    def close(self) -> None:
        """Does nothing: the transports share nothing."""


class HttpTransport(ThreadTransport):
    """One stream as a sequence of POSTs, made by its thread."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, stream_id: StreamId, timeout_s: float):
        super().__init__(stream_id, endpoint, timeout_s)
        if tls is None:
            self._connection = http.client.HTTPConnection(endpoint.url, timeout=timeout_s)
        else:
            self._connection = http.client.HTTPSConnection(endpoint.url, timeout=timeout_s, context=tls)
        self._is_closed = False

    def _interrupt(self) -> None:
        self._is_closed = True
        sock = self._connection.sock
        if sock is not None and self._thread.is_alive():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            self._post_requests()
        except TimeoutError:
            with self.update() as session:
                session.time_out()
        except (OSError, http.client.HTTPException) as error:
            self._fail_connection(_reason(error))
        finally:
            self._connection.close()

    def _post_requests(self) -> None:
        while self.wait_for_request():
            self._connect()
            with self.update() as session:
                request = session.next_request()
            if request is None:  # dropped meanwhile
                continue
            try:
                results = self._post(request)
                with self.update() as session:
                    session.deliver(*results)
            except ServerUnreachableError as error:
                self._fail_connection(error.reason)
            except ClientError as error:
                self.fail_or_wait_for_slot(error)

    def _connect(self) -> None:
        """Connects where there is no connection, or only one that the server has closed while it was idle.

        Repeats a failed attempt only where none of the stream's audio can have reached the server.
        """
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()
        if self._connection.sock is None:
            with self._lock:
                retry_s = self._endpoint.options.connect_retry_s if self._session.is_unsent else 0.0
            self._try_to_connect(retry_s)
        if self._is_closed:
            raise ConnectionAbortedError("the stream was closed")
        with self.update() as session:
            session.connected()

    def _try_to_connect(self, retry_s: float) -> None:
        for pause_s in retry_pauses_s(retry_s):
            try:
                return self._connection.connect()
            except (TimeoutError, ssl.SSLError):  # out of time; another attempt meets the same certificate
                raise
            except OSError:
                self._connection.close()
                if self.pause(pause_s):
                    raise
        self._connection.connect()

    def _post(self, request: Request) -> list[Result]:
        path, body, headers = post_of(self._endpoint, self._stream_id, request)
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
    """True where an idle connection can be read: as no request is open, the server has closed it."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))
