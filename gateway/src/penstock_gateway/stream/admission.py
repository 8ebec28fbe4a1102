"""Counts the streams of each API key, over all processes of a gateway."""

from collections.abc import Callable, MutableSequence, Sequence

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.security.limits import RETRY_AFTER_S


class Admission:
    """Admits streams up to the limit of their key."""

    def __init__(self, names: Sequence[str], counts: MutableSequence[int] | None = None, process: int = 0):
        """`names`: of all keys; `counts`: shared by the processes, [processes * names]; `process`: this one's index."""
        self._index = {name: i for i, name in enumerate(names)}
        self._counts: MutableSequence[int] = [0] * len(names) if counts is None else counts
        self._first = process * len(names)
        for i in range(self._first, self._first + len(names)):
            self._counts[i] = 0  # those of a process that has died

    def check(self, key: ApiKey) -> None:
        """GatewayError if the key has no stream left."""
        if key.max_streams is not None and self.live(key) >= key.max_streams:
            raise GatewayError(
                ErrorCode.STREAMS_EXHAUSTED,
                f"all {key.max_streams} streams of the API key {key.name!r} are open",
                retry_after_s=RETRY_AFTER_S,
            )

    def admit(self, key: ApiKey) -> Callable[[], None]:
        """Counts a stream and returns a function that ends it, once. GatewayError above the limit of its key.

        Each process changes its own counts only, so processes that admit at the same instant may exceed a limit.
        """
        self.check(key)
        index = self._index[key.name]
        self._counts[self._first + index] += 1
        is_live = True

        def end() -> None:
            nonlocal is_live
            if is_live:
                is_live = False
                self._counts[self._first + index] -= 1

        return end

    def live(self, key: ApiKey) -> int:
        """Live streams of a key."""
        step = len(self._index)
        return sum(self._counts[i] for i in range(self._index[key.name], len(self._counts), step))
