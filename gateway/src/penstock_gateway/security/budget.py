"""What the keys of a process share: places of each, turns that go round, and a budget in which others wait."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.security.limits import RETRY_AFTER_S


class KeyLimit:
    """Counts what each key has open in this process, up to a limit that follows from its streams."""

    def __init__(self, what: str, limit: Callable[[int], int]):
        """`what`: their name in errors; `limit`: of a key with this number of streams."""
        self._what, self._limit = what, limit
        self._open: Counter[str] = Counter()

    def open(self, key: ApiKey) -> int:
        """How many the key has open."""
        return self._open[key.name]

    @contextmanager
    def taken(self, key: ApiKey) -> Iterator[None]:
        """Takes a place until the block ends. GatewayError STREAMS_EXHAUSTED where there is none."""
        if key.max_streams is not None and self._open[key.name] >= (limit := self._limit(key.max_streams)):
            message = f"all {limit} {self._what} of the API key {key.name!r} are open"
            raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
        self._open[key.name] += 1
        try:
            yield
        finally:
            self._open[key.name] -= 1
            if not self._open[key.name]:
                del self._open[key.name]


class Turns:
    """A lock that goes round the keys: between two turns of a key, each other key that waits has one."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By name of the key, the next one first."""

    @asynccontextmanager
    async def taken(self, key: str) -> AsyncIterator[None]:
        """Waits for a turn of the key with this name, which lasts until the block ends."""
        if self._is_taken:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_on(key)
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on(key)

    def _pass_on(self, key: str) -> None:
        if key in self._waiting:
            self._waiting[key] = self._waiting.pop(key)  # behind the others
        while self._waiting:
            key, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[key]
            if not turn.done():
                return turn.set_result(None)
        self._is_taken = False


class Budget:
    """Something of which a process has a limited amount. A key may take half of it; who finds none waits."""

    def __init__(self, what: str, amount: int, max_wait_s: float):
        """`what`: its name in errors; `max_wait_s`: how long a request waits."""
        self._what, self._amount, self._max_wait_s = what, amount, max_wait_s
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def taken_of(self, key: str) -> int:
        """How much the key with this name has taken."""
        return self._taken[key]

    @asynccontextmanager
    async def taken(self, key: str, amount: int) -> AsyncIterator[Callable[[int], None]]:
        """Takes an amount for the key with this name until the block ends. Call what it yields with a smaller one.

        GatewayError STREAMS_EXHAUSTED where there is none in time.
        """
        await self._take(key, amount)

        def reduce(to: int) -> None:
            nonlocal amount
            amount, spare = to, amount - to
            self._give(key, spare)

        try:
            yield reduce
        finally:
            self._give(key, amount)

    @contextmanager
    def growing(self, key: str) -> Iterator[Callable[[int], None]]:
        """Yields what takes an amount in place of the one before, without a wait, until the block ends.

        It raises GatewayError STREAMS_EXHAUSTED where there is no room.
        """
        taken = 0

        def take(amount: int) -> None:
            nonlocal taken
            if amount > taken and not self._has_room(key, amount - taken):
                message = f"there is no {self._what} left"
                raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
            self._give(key, taken - amount)
            taken = amount

        try:
            yield take
        finally:
            self._give(key, taken)

    async def _take(self, key: str, amount: int) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._max_wait_s
        while not self._has_room(key, amount):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline_s - loop.time())
            except asyncio.TimeoutError:
                message = f"no {self._what} within {self._max_wait_s:g} s"
                raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S) from None
        self._taken[key] += amount

    def _give(self, key: str, amount: int) -> None:
        self._taken[key] -= amount
        self._changed.set()

    def _has_room(self, key: str, amount: int) -> bool:
        share = self._amount if key == ANONYMOUS.name else self._amount // 2
        return self._taken[key] + amount <= share and self._taken.total() + amount <= self._amount
