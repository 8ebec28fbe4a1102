"""The asyncio loop of tests with gRPC, and waiting in it."""

import asyncio
from collections.abc import Callable
from typing import Any


class GrpcLoop(asyncio.SelectorEventLoop):
    """Ignores late events of another test's loop.

    grpc.aio gives an event of a loop that has been closed to whichever loop runs next, as an exception in it.
    """

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Reports every other exception of a callback, and so fails the test."""
        if str(context.get("exception")) != "Event loop is closed":
            super().call_exception_handler(context)


ANYIO_BACKEND = ("asyncio", {"loop_factory": GrpcLoop})
"""The loop of the tests that are coroutines."""


async def until(is_met: Callable[[], object]) -> None:
    """Waits until the condition is met, and fails after a minute."""

    async def poll():
        while not is_met():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), 60)
