"""The service grpc.health.v1.Health, for probes of Kubernetes and proxies. Needs no key, so it reads no message.

A request's `service` has no effect: all services of the gateway are ready together.
"""

import asyncio
from collections.abc import Callable

import grpc

from penstock_gateway.gateway import Gateway
from penstock_gateway.grpc_api import Context

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
MAX_WATCHES = 64
"""Open calls of Watch in a process."""
_POLL_S = 1.0
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
        self._watches = 0

    async def check(self, _: object, context: Context) -> bytes:
        """SERVING while a replica answers and the gateway does not stop."""
        return self._response()

    async def watch(self, _: object, context: Context) -> None:
        """The same now and after each change. RESOURCE_EXHAUSTED where too many watch."""
        if self._watches >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} calls of Watch are open")
        self._watches += 1
        try:
            shown = b""
            while True:
                if (response := self._response()) != shown:
                    await context.write(response)
                    shown = response
                await asyncio.sleep(_POLL_S)
        finally:
            self._watches -= 1

    def _response(self) -> bytes:
        return bytes((_STATUS_FIELD, SERVING if self._is_ready() else NOT_SERVING))
