"""Resource limits of a process: per key what is open, memory, connections, messages per second."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey

_T = TypeVar("_T")


class KeyLimit:
    """Counts what each key has open in this process, up to a limit that follows from its streams."""

    def __init__(self, what: str, limit: Callable[[int], int]):
        """`what`: their name in errors; `limit`: of a key with this number of streams."""
        self._what, self._limit = what, limit
        self.open: Counter[str] = Counter()
        """By name of the key."""

    @contextmanager
    def taken(self, key: ApiKey) -> Iterator[None]:
        """Counts one more until the block ends. GatewayError STREAMS_EXHAUSTED where the limit is reached."""
        if key.max_streams is not None and self.open[key.name] >= (limit := self._limit(key.max_streams)):
            message = f"all {limit} {self._what} of the API key {key.name!r} are open"
            raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, message)
        self.open[key.name] += 1
        try:
            yield
        finally:
            self.open[key.name] -= 1
            if not self.open[key.name]:
                del self.open[key.name]


class Budget:
    """Something of which a process has a limited amount. A key may take half of it; other requests wait.

    A key that has none gets the room of what has not arrived.
    """

    def __init__(self, what: str, amount: int, max_wait_s: float):
        """`what`: its name in errors; `max_wait_s`: how long a request waits."""
        self._what, self._amount, self._max_wait_s = what, amount, max_wait_s
        self.used: Counter[str] = Counter()
        """By name of the key, how much it has taken."""
        self._changed = asyncio.Event()
        self._arriving: dict[Callable[[], None], tuple[str, float]] = {}
        """By the call that ends a message: its key, and when it took its room."""

    @asynccontextmanager
    async def taken(self, key: str, amount: int) -> AsyncIterator[Callable[[int], None]]:
        """Takes an amount for the key with this name until the block ends. Call what it yields with a smaller one.

        GatewayError STREAMS_EXHAUSTED where there is none in time.
        """
        await self.acquire(key, amount)

        def reduce(to: int) -> None:
            nonlocal amount
            amount, spare = to, amount - to
            self.release(key, spare)

        try:
            yield reduce
        finally:
            self.release(key, amount)

    async def arrival(self, key: str, reading: Awaitable[_T], limit_s: float) -> _T:
        """Returns what is read, for which there is room already. Another key may get that room meanwhile: GatewayError.

        asyncio.TimeoutError after `limit_s`.
        """
        task, is_ended = asyncio.ensure_future(reading), False

        def end() -> None:
            nonlocal is_ended
            is_ended = task.cancel()

        self._arriving[end] = key, asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(task, limit_s)
        except asyncio.CancelledError:
            if not is_ended:
                raise
            message = f"another key needs the {self._what} of what has not arrived"
            raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, message) from None
        finally:
            self._arriving.pop(end, None)

    @contextmanager
    def growing(self, key: str) -> Iterator[Callable[[int], None]]:
        """Yields what sets the amount that is held until the block ends, without a wait.

        It raises GatewayError STREAMS_EXHAUSTED where there is no room.
        """
        taken = 0

        def resize(amount: int) -> None:
            nonlocal taken
            if amount > taken and not self._has_room(key, amount - taken):
                self._make_room(key)
                raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, f"there is no {self._what} left")
            self.release(key, taken - amount)
            taken = amount

        try:
            yield resize
        finally:
            resize(0)

    async def acquire(self, key: str, amount: int) -> None:
        """Takes an amount as `taken` does, until `release`."""
        await self._wait(lambda: self._has_room(key, amount), key)
        self.used[key] += amount

    async def grow(self, resize: Callable[[int], None], key: str, taken: int, amount: int) -> None:
        """Calls what `growing` has yielded, which holds `taken`, as soon as there is room.

        Where all that could give room waits itself, the first one to wait too long gives it.
        """
        await self._wait(lambda: self._has_room(key, amount - taken), key)
        resize(amount)

    async def _wait(self, has_room: Callable[[], bool], key: str) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._max_wait_s
        while not has_room():
            if loop.time() > deadline_s:
                raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, f"no {self._what} within {self._max_wait_s:g} s")
            self._make_room(key)
            self._changed.clear()
            with suppress(asyncio.TimeoutError):  # what arrives can be ended after a time
                left_s = max(0.0, deadline_s - loop.time()) + 1e-3
                await asyncio.wait_for(self._changed.wait(), min(limits.POLL_S, left_s) if self._arriving else left_s)

    def _make_room(self, key: str) -> None:
        """Ends what has been arriving for the longest time, of the key that has most, if this key has none."""
        if self.used[key] or any(since_s == math.inf for _, since_s in self._arriving.values()):
            return
        until_s = asyncio.get_running_loop().time() - limits.TICK_S / 2  # a message arrives faster than this
        late = [(-self.used[of], since_s, end) for end, (of, since_s) in self._arriving.items() if since_s < until_s]
        if late:
            *_, end = min(late, key=lambda each: each[:2])
            self._arriving[end] = key, math.inf  # one at a time
            end()

    def release(self, key: str, amount: int) -> None:
        """Gives it back."""
        self.used[key] -= amount
        self._changed.set()

    def _share(self, key: str) -> int:
        return self._amount if key == ANONYMOUS.name else self._amount // 2

    def _has_room(self, key: str, amount: int) -> bool:
        return self.used[key] + amount <= self._share(key) and self.used.total() + amount <= self._amount


class Connections:
    """The open connections of a process."""

    def __init__(self, max_open: int, max_unknown: int):
        """`max_unknown`: of one address, before they have shown a key."""
        self._max_open, self._max_unknown = max_open, max_unknown
        self.open_count = 0
        self.unknown: Counter[str] = Counter()
        """By address."""

    def open(self, address: str) -> "OpenConnection":
        """Counts a connection of this client until it is closed. GatewayError OVERLOADED above a limit."""
        if self.open_count >= self._max_open:
            raise GatewayError(GatewayCode.OVERLOADED, f"all {self._max_open} connections of the gateway are open")
        if self.unknown[address] >= self._max_unknown:
            raise GatewayError(
                GatewayCode.OVERLOADED, f"{self._max_unknown} connections of this address have shown no key"
            )
        self.open_count += 1
        self.unknown[address] += 1
        return OpenConnection(self, address)


class OpenConnection:
    """One open connection."""

    def __init__(self, connections: Connections, address: str):
        self._connections, self.address = connections, address
        self._is_known = self._is_closed = False
        self.last_ping_s = 0.0
        """Time, by the event loop's clock, of the last ping from a WebSocket's client."""

    def know(self) -> None:
        """Notes that the connection has shown a key; also after others."""
        if not self._is_known:
            self._is_known = True
            unknown = self._connections.unknown
            unknown[self.address] -= 1
            if not unknown[self.address]:
                del unknown[self.address]

    def close(self) -> None:
        """Notes that the connection is closed; also after others."""
        if not self._is_closed:
            self._is_closed = True
            self.know()
            self._connections.open_count -= 1


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


class WriteLimit:
    """Limits the time that each write to one client takes. Cheaper than `asyncio.wait_for`, which may make a task."""

    def __init__(self) -> None:
        self._limit_s = limits.UNRESPONSIVE_S
        self._is_expired = False

    async def write(self, writing: Awaitable[object]) -> None:
        """Awaits a write of this task. GatewayError RESULTS_UNREAD where it takes too long; it is then cancelled."""
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire, task)
        try:
            await writing
        except asyncio.CancelledError:
            if not self._is_expired:
                raise
            message = f"the client did not read its results for {self._limit_s:g} s"
            raise GatewayError(GatewayCode.RESULTS_UNREAD, message) from None
        finally:
            timer.cancel()

    def _expire(self, task: "asyncio.Task[object]") -> None:
        self._is_expired = True
        task.cancel()
