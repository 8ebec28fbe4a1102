"""The service grpc.health.v1.Health, for probes of Kubernetes and proxies. Needs no key, so it reads no message.

A request's `service` has no effect: all services of the gateway are ready together.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import grpc

from penstock_gateway import limits
from penstock_gateway.gateway import Gateway
from penstock_gateway.rpc.api import Context

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
MAX_WATCHES, MAX_WATCHES_OF_ADDRESS = 64, 16
"""Open calls of Watch in a process, and of one client's address."""
_STATUS_FIELD = 1 << 3  # HealthCheckResponse has one field: status, an enum


def add_health_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service."""
    service = HealthService(lambda: bool(gateway.streams.groups))
    handlers = {
        "Check": grpc.stream_unary_rpc_method_handler(service.check),
        "Watch": grpc.stream_stream_rpc_method_handler(service.watch),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class HealthService:
    """Both methods; responses are bytes."""

    def __init__(self, is_ready: Callable[[], bool]):
        self._is_ready = is_ready
        self._watches: Counter[str] = Counter()
        """By address."""

    async def check(self, _: object, context: Context) -> bytes:
        """SERVING while a replica answers and the gateway does not stop."""
        return self._response()

    async def watch(self, _: object, context: Context) -> None:
        """The same now and after each change. RESOURCE_EXHAUSTED where too many watch."""
        address = context.peer().rpartition(":")[0]
        if self._watches[address] >= MAX_WATCHES_OF_ADDRESS or self._watches.total() >= MAX_WATCHES:
            accepted = f"{MAX_WATCHES}, {MAX_WATCHES_OF_ADDRESS} of one address"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many watch; accepted: {accepted}")
        self._watches[address] += 1
        try:
            shown = b""
            while True:
                if (response := self._response()) != shown:
                    await context.write(response)
                    shown = response
                await asyncio.sleep(limits.TICK_S)
        finally:
            self._watches[address] -= 1
            self._watches += Counter()  # without addresses that have none

    def _response(self) -> bytes:
        return bytes((_STATUS_FIELD, SERVING if self._is_ready() else NOT_SERVING))
