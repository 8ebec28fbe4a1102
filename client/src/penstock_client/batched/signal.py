"""AsyncSignal: wakes the tasks of an event loop that wait at that moment."""

import asyncio
import math


class AsyncSignal:
    """Wakes the tasks that wait at that moment. A later wait is for the next signal.

    Used instead of `asyncio.Event` in `asyncio.wait_for`, which up to Python 3.11 creates a task for each wait.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def give(self) -> None:
        """Wakes the waiting tasks."""
        # Taken first: a task that wakes may wait again, and is not to be woken by this signal a second time.
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _resolve(future)

    async def wait(self, limit_s: float) -> None:
        """Returns at the next signal, or after `limit_s`, which may be infinite."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        timer = None if limit_s == math.inf else loop.call_later(limit_s, _resolve, future)
        try:
            await future
        finally:
            if timer:
                timer.cancel()
            # Also where the task was cancelled: the list would grow with each wait.
            if future in self._waiting:
                self._waiting.remove(future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
