"""The service grpc.health.v1.Health, for probes of Kubernetes and proxies. Needs no key, so it reads no message.

A request's `service` has no effect: all services of the gateway are ready together. Only Check is served: the
protocol lets a server answer Watch with UNIMPLEMENTED, and clients then call no more.
"""

import grpc

from penstock_gateway.gateway import Gateway
from penstock_gateway.rpc.api import Context

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
_STATUS_FIELD = 1 << 3  # HealthCheckResponse has one field: status, an enum


def add_health_service(gateway: Gateway, server: grpc.aio.Server) -> None:
    """Registers the service."""

    async def check(_: object, context: Context) -> bytes:
        """SERVING while a replica answers and the gateway does not stop."""
        return bytes((_STATUS_FIELD, SERVING if gateway.streams.groups else NOT_SERVING))

    handlers = {"Check": grpc.stream_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
