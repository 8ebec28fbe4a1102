"""Limits of open connections of the HTTP port, and of messages per second of one of them. Knows no socket."""

from collections import Counter

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS
from penstock_gateway.security.limits import RETRY_AFTER_S


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
        """Of the event loop's clock: when a WebSocket's client has sent its last ping."""

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

    def take(self, messages: int, now_s: float) -> float:
        """Messages have arrived, also more than are left. Returns how long no more may come; not above 0: none."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._per_s) - messages
        self._last_s = now_s
        return -self._tokens / self._per_s
