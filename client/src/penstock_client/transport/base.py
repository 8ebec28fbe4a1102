"""The seam between a stream and a network protocol: a connection opens transports, a transport carries one stream."""

import threading
from abc import ABC, abstractmethod
from typing import Protocol

from penstock_client.connection import Endpoint
from penstock_client.errors import StreamId
from penstock_client.protocol import Request, Result
from penstock_client.transport.channel import Channel
from penstock_client.transport.probe import explain

JOIN_TIMEOUT_S = 1.0
"""How long closing waits for a transport's thread or task once its network call is interrupted."""


class Transport(Protocol):
    """Carries one stream to the server and back. Replies come in the order of the requests."""

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""

    def send(self, request: Request) -> None:
        """Sends without waiting for the reply; blocks while too much is unanswered. Raises ClientError."""

    def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""

    def close(self) -> None:
        """Cancels, and frees everything within CLOSE_TIMEOUT_S + JOIN_TIMEOUT_S. Called once.

        A stream that is not finished is ended on the server first, also after a failure.
        """


class Connection(Protocol):
    """The connection to one server."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> Transport:
        """A transport for a new stream. It connects with its first request, so errors appear there."""

    def close(self) -> None:
        """Frees what the transports share."""


class ThreadTransport(Channel, ABC):
    """A `Transport` with a thread that starts with the stream's first request."""

    def __init__(self, stream_id: StreamId, endpoint: Endpoint, timeout_s: float):
        super().__init__(stream_id, endpoint.url, timeout_s, wait_for_slot_s=endpoint.options.wait_for_slot_s)
        self._endpoint = endpoint
        self._stream_id = stream_id
        self._thread = threading.Thread(target=self._run_to_end, name=f"penstock {stream_id}", daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Sends the channel's requests and delivers the replies."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Wakes the thread if it waits for the network."""

    def send(self, request: Request) -> None:
        """Sends without waiting for the reply; blocks while too much is unanswered. Raises ClientError."""
        super().send(request)
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """Cancels, and frees everything within CLOSE_TIMEOUT_S + JOIN_TIMEOUT_S. Called once."""
        self.cancel()
        with self._lock:
            timeout_s = self._session.close_timeout_s
            if self._thread.ident is None:
                return
        self._thread.join(timeout_s)
        self._interrupt()
        self._thread.join(JOIN_TIMEOUT_S)

    def _fail_connection(self, reason: str) -> None:
        """Fails the stream because its connection did. If no server was reached, the error names what answers there."""
        with self._lock:
            is_unreached = self._session.is_unreached
        if is_unreached:
            reason = explain(self._endpoint, reason)
        with self.update() as session:
            session.connection_lost(reason)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            with self.update() as session:
                session.ended_by_server()
