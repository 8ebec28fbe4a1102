"""What a process has a limited amount of: what each key has open, turns, memory, connections, messages per second."""

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
        """Counts one more until the block ends. GatewayError STREAMS_EXHAUSTED where the limit is reached."""
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

    def used_by(self, key: str) -> int:
        """How much the key with this name has taken."""
        return self._taken[key]

    @asynccontextmanager
    async def taken(self, key: str, amount: int) -> AsyncIterator[Callable[[int], None]]:
        """Takes an amount for the key with this name until the block ends. Call what it yields with a smaller one.

        GatewayError STREAMS_EXHAUSTED where there is none in time.
        """
        await self._acquire(key, amount)

        def reduce(to: int) -> None:
            nonlocal amount
            amount, spare = to, amount - to
            self._release(key, spare)

        try:
            yield reduce
        finally:
            self._release(key, amount)

    @contextmanager
    def growing(self, key: str) -> Iterator[Callable[[int], None]]:
        """Yields what sets the amount that is held until the block ends, without a wait.

        It raises GatewayError STREAMS_EXHAUSTED where there is no room.
        """
        taken = 0

        def resize(amount: int) -> None:
            nonlocal taken
            if amount > taken and not self._has_room(key, amount - taken):
                message = f"there is no {self._what} left"
                raise GatewayError(ErrorCode.STREAMS_EXHAUSTED, message, retry_after_s=RETRY_AFTER_S)
            self._release(key, taken - amount)
            taken = amount

        try:
            yield resize
        finally:
            self._release(key, taken)

    async def _acquire(self, key: str, amount: int) -> None:
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

    def _release(self, key: str, amount: int) -> None:
        self._taken[key] -= amount
        self._changed.set()

    def _has_room(self, key: str, amount: int) -> bool:
        share = self._amount if key == ANONYMOUS.name else self._amount // 2
        return self._taken[key] + amount <= share and self._taken.total() + amount <= self._amount


class Connections:
    """The open connections of a process."""

    def __init__(self, max_open: int, max_unknown: int):
        """`max_unknown`: of one address, before they have shown a key."""
        self._max_open, self._max_unknown = max_open, max_unknown
        self._open = 0
        self._unknown: Counter[str] = Counter()

    def open(self, address: str) -> "Connection":
        """Counts a connection of this client until it is closed. GatewayError OVERLOADED above a limit."""
        if self._open >= self._max_open:
            raise _too_many(f"all {self._max_open} connections of the gateway are open")
        if self._unknown[address] >= self._max_unknown:
            raise _too_many(f"{self._max_unknown} connections of this address have shown no key")
        self._open += 1
        self._unknown[address] += 1
        return Connection(self, address)

    def know(self, address: str) -> None:
        """One of the address's has shown a key."""
        self._unknown[address] -= 1
        if not self._unknown[address]:
            del self._unknown[address]

    def close(self) -> None:
        """One is closed."""
        self._open -= 1


def _too_many(message: str) -> GatewayError:
    return GatewayError(ErrorCode.OVERLOADED, message, retry_after_s=RETRY_AFTER_S)


class Connection:
    """One open connection."""

    def __init__(self, connections: Connections, address: str):
        self._connections, self._address = connections, address
        self._is_known = self._is_closed = False
        self.key = ANONYMOUS.name
        """Name of the key that it has shown."""
        self.last_ping_s = 0.0
        """When, by the event loop's clock, a WebSocket's client has sent its last ping."""

    def know(self) -> None:
        """It has shown a key; also after others."""
        if not self._is_known:
            self._is_known = True
            self._connections.know(self._address)

    def close(self) -> None:
        """It is closed; also after others."""
        if not self._is_closed:
            self._is_closed = True
            self.know()
            self._connections.close()


class TokenBucket:
    """Limits messages per second, after a number that may come at once."""

    def __init__(self, per_s: float, burst: float, now_s: float):
        self._per_s, self._burst = per_s, burst
        self._tokens, self._last_s = burst, now_s

    def spend(self, messages: int, now_s: float) -> float:
        """Messages have arrived, also more than are left. Returns how long no more may come; not above 0: none."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._per_s) - messages
        self._last_s = now_s
        return -self._tokens / self._per_s
