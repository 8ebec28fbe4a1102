"""The HTTP port's side of a socket: uvicorn's protocols with limits of headers, connections and messages per second."""

import asyncio
import json
import math
from asyncio import Transport
from collections.abc import Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.api import CONNECTION
from penstock_gateway.http.openai_objects import error_body
from penstock_gateway.security.budget import Connections, OpenConnection, TokenBucket

_PROTOCOL = "http"
_TOO_LARGE = f"the header has more than {limits.MAX_HEAD_BYTES:,} bytes"
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a client of TLS: a record's type, and its version's first byte."""
_MAX_HANDSHAKE_LINE = 8000
"""The parser of websockets takes 8,192."""
_HTTP_PIECE_BYTES, _WEBSOCKET_PIECE_BYTES = 16 << 10, 32 << 10
"""Bytes that are parsed at once. A read of 256 KiB may hold 50,000 fields or messages."""


def wrong_scheme(address: str, is_tls: bool) -> GatewayError:
    """The error of a client that uses TLS where the port does not, or does not where the port does (`is_tls`)."""
    problem = "TLS on a port without TLS; accepted: http:// and ws://, or a gateway with --tls-cert and --tls-key"
    if is_tls:
        problem = "no TLS on a port with TLS; accepted: https:// and wss://"
    return GatewayError(GatewayCode.FIELD_INVALID, f"{address} uses {problem}")


class HttpProtocol(HttpToolsProtocol):
    """httptools has no limits of its own, and takes ever longer for a header that grows."""

    def __init__(
        self,
        *args: Any,
        gateway: Gateway,
        connections: Connections,
        connection: OpenConnection | None = None,
        **kwargs: Any,
    ):
        """`connection`: counted before its TLS handshake."""
        super().__init__(*args, **kwargs)
        self._gateway, self._connections, self._connection = gateway, connections, connection
        self._head_timer: asyncio.TimerHandle | None = None
        self._unused_bytes = 0
        """Received since the parser last completed a header, a part of a body or a message."""
        self._fields = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Rejects a connection above the limits."""
        super().connection_made(transport)
        try:
            self._connection = self._connection or self._connections.open(self.client[0] if self.client else "")
        except GatewayError as error:
            return self._reject(error, HTTPStatus.SERVICE_UNAVAILABLE)
        self.ws_protocol_class = partial(  # type: ignore[assignment]
            WebSocketProtocol, gateway=self._gateway, connection=self._connection
        )
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        self._stop_timer()
        if self._connection is not None:
            self._connection.close()

    def data_received(self, data: bytes) -> None:
        """Parses in pieces, so that a header above a limit costs no more than one within it."""
        if self._connection and data.startswith(_TLS_HANDSHAKE) and self.cycle is None and not self._unused_bytes:
            return self._reject(wrong_scheme(self._connection.address, is_tls=False), HTTPStatus.BAD_REQUEST)
        for start in range(0, len(data), _HTTP_PIECE_BYTES):
            if self.transport.is_closing():
                return
            piece = data[start : start + _HTTP_PIECE_BYTES]
            self._unused_bytes += len(piece)
            super().data_received(piece)
            if self.transport.get_protocol() is not self:
                return  # a WebSocket from here on
            if self._unused_bytes > limits.MAX_HEAD_BYTES:
                self._reject_head(_TOO_LARGE)
        if self._is_between_requests:
            self._start_timer()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._fields = 0
        self.scope["state"][CONNECTION] = self._connection

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field, also of those after a body. An error ends the parsing."""
        self._fields += 1
        if self._fields > limits.MAX_HEAD_FIELDS:
            raise ValueError
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """The parser has failed."""
        if self._fields > limits.MAX_HEAD_FIELDS:
            return self._reject_head(f"the header has more than {limits.MAX_HEAD_FIELDS} fields")
        if self._unused_bytes > limits.MAX_HEAD_BYTES:
            return self._reject_head(_TOO_LARGE)
        self._reject(GatewayError(GatewayCode.FIELD_INVALID, "the request is not HTTP"), HTTPStatus.BAD_REQUEST)

    def on_headers_complete(self) -> None:
        """The header is complete. An error ends the parsing."""
        if self._unused_bytes > limits.MAX_HEAD_BYTES:
            raise ValueError
        self._stop_timer()
        self._unused_bytes = 0
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """Gives the socket to the other protocol, whose parser keeps silent about a header that it does not take."""
        if any(len(name) + len(value) > _MAX_HANDSHAKE_LINE for name, value in [(self.url, b""), *self.headers]):
            return self._reject_head(f"a line of the handshake has more than {_MAX_HANDSHAKE_LINE:,} bytes")
        super().handle_websocket_upgrade()
        if not self.transport.get_protocol().handshake_initiated:  # type: ignore[attr-defined]
            self._reject(GatewayError(GatewayCode.FIELD_INVALID, "the handshake is not HTTP"), HTTPStatus.BAD_REQUEST)

    def on_body(self, body: bytes) -> None:
        """A part of a body is complete."""
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._stop_timer()
        self._unused_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The rest of a body that is not read any more has as much time as a header."""
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._start_timer()

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.UNRESPONSIVE_S, self._expire)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expire(self) -> None:
        if not self._is_between_requests:
            return self.transport.close()  # the request has had its response
        message = f"the header has not arrived within {limits.UNRESPONSIVE_S:g} s"
        self._reject(GatewayError(GatewayCode.STREAM_IDLE, message), HTTPStatus.REQUEST_TIMEOUT)

    def _reject_head(self, message: str) -> None:
        self._reject(GatewayError(GatewayCode.TOO_LARGE, message), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _reject(self, error: GatewayError, status: HTTPStatus) -> None:
        """Answers without the application, and closes the connection."""
        if self.transport.is_closing():
            return
        self._gateway.note_rejection(_PROTOCOL, error)
        body = json.dumps({"error": error_body(error)}).encode()
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json", "connection: close"]
        lines += [f"content-length: {len(body)}"]
        lines += [f"retry-after: {error.retry_after_s:.0f}"] if error.retry_after_s is not None else []
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()


class _FrameParser(ServerProtocol):
    """Stays open where a message is too large, so that its client still hears why; nothing more may be parsed."""

    def fail(self, code: int, reason: str = "") -> None:
        """Fails the connection: the data cannot be parsed."""
        if code != CloseCode.MESSAGE_TOO_BIG or self.state is not OPEN:
            super().fail(code, reason)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Takes messages and pings up to a number per second, and no more while the application has one to read."""

    def __init__(self, *args: Any, gateway: Gateway, connection: OpenConnection, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._gateway, self._connection = gateway, connection
        self._bucket = TokenBucket(limits.MESSAGES_PER_S, limits.MAX_MESSAGE_BURST, self.loop.time())
        self._held = bytearray()
        """Received, and not parsed yet."""
        self._wait: asyncio.TimerHandle | None = None
        self._received_s = self.loop.time()
        self.conn = _FrameParser(max_size=limits.MAX_WEBSOCKET_BYTES, logger=self.logger)
        self._deadline: asyncio.TimerHandle | None = None
        """The end of the time for a large message."""
        self._is_dropping = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._held.clear()
        self._end_deadline()
        if self._wait is not None:
            self._wait.cancel()
        self._connection.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes what the client has sent, or keeps it until the application has read what came before."""
        self._received_s = self.loop.time()
        if self._is_dropping or self.conn.parser_exc is not None:
            return  # the error is queued for the application already
        if not self.handshake_initiated:
            super().data_received(data)
            return
        self._held += data
        self._parse_held()

    def handle_connect(self, event: Any) -> None:
        """Tells the application which connection it is."""
        super().handle_connect(event)
        if self.handshake_initiated and hasattr(self, "scope"):
            self.scope["state"][CONNECTION] = self._connection

    def handle_events(self) -> None:
        """Frames have arrived."""
        frames = len(self.conn.events)
        super().handle_events()
        wait_s = self._bucket.spend(frames, self.loop.time())
        if wait_s > 0 and self._wait is None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._wait = self.loop.call_later(wait_s, self._go_on)

    def handle_ping(self) -> None:
        """The client shows that it is there."""
        self._connection.last_ping_s = self.loop.time()
        super().handle_ping()

    def keepalive_timeout(self) -> None:
        """A ping is unanswered. Its answer comes behind audio that is not read yet, unless the client is silent."""
        is_behind = self._held or self.read_paused or self._wait is not None
        limit_s = self.ping_timeout or math.inf
        if is_behind or self.loop.time() - self._received_s < limit_s:
            self.pong_timer = self.loop.call_later(limit_s, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def send_receive_event_to_app(self) -> None:
        """A message is complete. uvicorn reports a text that is not UTF-8 as its own failure, with a traceback."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            data = b"".join(self.frames)
            if len(data) > limits.MAX_EVENT_BYTES and not data.isascii():  # its characters would take 4 bytes each
                return self._drop(GatewayError(GatewayCode.TOO_LARGE, f"a message of {len(data):,} bytes is not ASCII"))
            try:
                data.decode()
            except UnicodeDecodeError as error:
                self.conn.fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
                return self.handle_parser_exception()
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """The client has sent what is no WebSocket, which is an error as others are."""
        close = self.conn.close_sent
        self._held.clear()
        if isinstance(self.conn.parser_exc, PayloadTooBig) and not close:
            self.handle_events()  # those before it
            message = f"a message has more bytes; accepted: {limits.MAX_WEBSOCKET_BYTES:,}, with 3 MiB of audio"
            return self._drop(GatewayError(GatewayCode.TOO_LARGE, message))
        reason = close.reason if close else "frames before the answer to the handshake"
        error = GatewayError(GatewayCode.FIELD_INVALID, f"the WebSocket failed: {reason}")
        self._gateway.note_rejection("realtime", error)
        if close is not None:
            return super().handle_parser_exception()
        self.close_sent = True
        self.transport.close()

    async def receive(self) -> Any:
        """The next message for the application. As uvicorn's, without another coroutine for each message."""
        message = await self.queue.get()
        if self._held:
            self.read_paused = self.read_paused and not self.queue.empty()
            self._parse_held()
        elif self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return message

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        """Sends a message of the application."""
        return self._close(message) if message["type"] == "websocket.close" else super().send(message)

    async def _close(self, message: Any) -> None:
        await super().send(message)
        # the client's answer comes after all this, which is dropped
        if self._held or self._wait is not None or self._is_dropping:
            self._held.clear()
            while not self.queue.empty():
                self.queue.get_nowait()
            if self.close_timer is not None:
                self.close_timer.cancel()
                self.close_timer = self.loop.call_later(limits.CLOSE_S, self.transport.close)

    def _watch_message(self) -> None:
        """Ends a large message that does not arrive in time."""
        if len(self.conn.reader.buffer) + (self.conn.current_size or 0) <= limits.MAX_EVENT_BYTES:
            self._end_deadline()
        elif self._deadline is None:
            late = GatewayError(GatewayCode.STREAM_IDLE, f"a message took {limits.MAX_SILENT_S:g} s")
            self._deadline = self.loop.call_later(limits.MAX_SILENT_S, self._drop, late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self, error: GatewayError) -> None:
        """Tells the application this end of the messages, and takes no more."""
        self._is_dropping = True
        self._end_deadline()
        self._held.clear()
        self.frames.clear()
        self.conn.reader.buffer.clear()
        self.queue.put_nowait({"type": "websocket.receive", "error": error})  # type: ignore[arg-type]

    def _go_on(self) -> None:
        self._wait = None
        self._parse_held()

    def _parse_held(self) -> None:
        """Parses what is held, in pieces. Reads no more as long as anything is left."""
        while self._held and not self.read_paused and self._wait is None and not self.transport.is_closing():
            piece = bytes(self._held[:_WEBSOCKET_PIECE_BYTES])
            del self._held[: len(piece)]
            super().data_received(piece)
            if not self._is_dropping:
                self._watch_message()
        if self.transport.is_closing():
            return
        if self.conn.parser_exc is None and not self._is_dropping and (self._held or self._wait is not None):
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()
