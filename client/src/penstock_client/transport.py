"""The seam between a stream and a network protocol. A transport carries one stream; a connection opens transports.

Each comes in two forms, for threads and for asyncio, with the same promises.
"""

from typing import Protocol

from penstock_client.errors import StreamId
from penstock_client.protocol import Piece, Result

FAREWELL_S = 1.0
"""How long closing an unfinished stream waits for the server to take its end."""
JOIN_S = 1.0
"""How long closing waits, after that, for a transport's thread; it ends at once unless the system is stuck."""


class Transport(Protocol):
    """One stream's way to the server and back. Replies come in the order of the pieces."""

    @property
    def is_complete(self) -> bool:
        """True once every piece up to the last has been answered, and every result received."""

    def send(self, piece: Piece) -> None:
        """Sends a piece without waiting for its reply; blocks while too much is unanswered. Raises ClientError."""

    def receive(self, wait_s: float | None) -> Result | None:
        """The next result, or None: not within `wait_s`, or the stream is complete. None waits. Raises ClientError."""

    def cancel(self) -> None:
        """Drops what has not gone out, and lets the stream's end go out in its place; waits for nothing."""

    def close(self) -> None:
        """Frees everything, within FAREWELL_S + JOIN_S, whatever the server does. Call it once.

        A stream that is not finished is ended on the server first, one that failed there included.
        """


class Connection(Protocol):
    """The way to one server."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> Transport:
        """A transport for a new stream; fails no sooner than its first use."""

    def close(self) -> None:
        """Frees what its transports share."""


class AsyncTransport(Protocol):
    """`Transport` for asyncio."""

    @property
    def is_complete(self) -> bool:
        """See Transport."""

    async def send(self, piece: Piece) -> None:
        """See Transport."""

    async def receive(self, wait_s: float | None) -> Result | None:
        """See Transport."""

    def cancel(self) -> None:
        """See Transport."""

    async def close(self) -> None:
        """See Transport."""


class AsyncConnection(Protocol):
    """`Connection` for asyncio; made anywhere, used in one event loop."""

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> AsyncTransport:
        """See Connection."""

    async def close(self) -> None:
        """See Connection."""
