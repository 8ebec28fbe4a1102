"""The seam between a stream and a network protocol: a connection opens transports, a transport carries one stream.

Once for threads and once, with methods to await, for asyncio.
"""

from typing import Protocol

from penstock_client.protocol import Request
from penstock_common.errors import StreamId
from penstock_common.results import Result


class Transport(Protocol):
    """Carries one stream to the server and back. Replies come in the order of the requests."""

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the stream is opened."""

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that are still here: they complete no chunk."""

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
        """Cancels, and waits until the server has taken the end, up to `limits.CLOSE_S`. Called once."""


class Connection(Protocol):
    """The connection to one server."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> Transport:
        """A transport for a new stream. It connects with its first request, so errors appear there."""

    def close(self) -> None:
        """Frees what the transports share."""


class AsyncTransport(Protocol):
    """Carries one stream to the server and back. Replies come in the order of the requests."""

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the stream is opened."""

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that are still here: they complete no chunk."""

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError."""

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""

    async def close(self) -> None:
        """Cancels, and waits until the server has taken the end, up to `limits.CLOSE_S`. Called once."""


class AsyncConnection(Protocol):
    """The connection to one server; made anywhere, used in one event loop."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> AsyncTransport:
        """A transport for a new stream. It connects with its first request, so errors appear there."""

    async def close(self) -> None:
        """Frees what the transports share."""
