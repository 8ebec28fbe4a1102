"""The memory of a process for whole messages, such as recordings: who has no place there waits, and reads nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import RETRY_AFTER_S


class MessageBudget:
    """Bytes that messages of a process may take at the same time, and half of them those of one key."""

    def __init__(self, max_bytes: int, message_bytes: int, max_wait_s: float):
        """`message_bytes`: the largest message; `max_wait_s`: how long a call waits for a place."""
        self._max_bytes = max_bytes
        self._message_bytes = message_bytes
        self._max_wait_s = max_wait_s
        self._bytes: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def reading(self, key: str) -> AsyncIterator[Callable[[int], None]]:
        """A place for a message of the key with this name until the block ends; call what it yields with its size.

        GatewayError STREAMS_EXHAUSTED where there is none in time.
        """
        await self._take(key)
        taken = self._message_bytes

        def received(size: int) -> None:
            nonlocal taken
            taken, spare = size, taken - size
            self._give(key, spare)

        try:
            yield received
        finally:
            self._give(key, taken)

    async def _take(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._max_wait_s
        while not self._has_room(key):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline_s - loop.time())
            except asyncio.TimeoutError:
                message = f"no memory for a message within {self._max_wait_s:g} s"
                raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S) from None
        self._bytes[key] += self._message_bytes

    def _give(self, key: str, size: int) -> None:
        self._bytes[key] -= size
        self._changed.set()

    def _has_room(self, key: str) -> bool:
        of_key = self._bytes[key] + self._message_bytes
        return of_key <= self._max_bytes // 2 and self._bytes.total() + self._message_bytes <= self._max_bytes
