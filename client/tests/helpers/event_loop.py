"""The asyncio loop of tests with gRPC."""

import asyncio
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
