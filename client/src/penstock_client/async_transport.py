"""What the transports for asyncio share: a task that carries one stream. Knows no network protocol."""

import asyncio
from abc import ABC, abstractmethod

from penstock_client.async_mailbox import AsyncMailbox
from penstock_client.errors import StreamId
from penstock_client.protocol import Piece, Result
from penstock_client.transport import JOIN_S


class AsyncTaskTransport(ABC):
    """An AsyncTransport whose task begins with the first piece."""

    def __init__(self, stream_id: StreamId, mailbox: AsyncMailbox):
        self._stream_id = stream_id
        self._mailbox = mailbox
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _run(self) -> None:
        """Puts the mailbox's pieces on the wire and delivers the replies, until there are no more."""

    @property
    def is_complete(self) -> bool:
        """See Transport."""
        return self._mailbox.is_complete

    async def send(self, piece: Piece) -> None:
        """See Transport."""
        if self._task is None:
            self._task = asyncio.create_task(self._run_to_end(), name=f"penstock {self._stream_id}")
        await self._mailbox.announce(piece)

    async def receive(self, wait_s: float | None) -> Result | None:
        """See Transport."""
        return await self._mailbox.take(wait_s)

    def cancel(self) -> None:
        """See Transport."""
        self._mailbox.leave()

    async def close(self) -> None:
        """See Transport."""
        self.cancel()
        if self._task is None:
            return
        try:
            await asyncio.wait([self._task], timeout=self._mailbox.farewell_s)
        finally:
            self._task.cancel()  # does nothing to one that is done
        await asyncio.wait([self._task], timeout=JOIN_S)

    async def _run_to_end(self) -> None:
        try:
            await self._run()
        finally:
            self._mailbox.end()
