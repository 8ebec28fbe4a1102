"""Where protocols register: routes of the HTTP port and services of the gRPC port."""

from collections.abc import Callable, Sequence

import grpc
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from penstock_gateway.captions import captions_routes
from penstock_gateway.gateway import Gateway
from penstock_gateway.health import health_routes
from penstock_gateway.http_errors import on_disconnect, on_failure, on_http_error
from penstock_gateway.openai.routes import openai_routes
from penstock_gateway.openai.transcriptions import IGNORED_HEADER
from penstock_gateway.realtime.routes import realtime_routes
from penstock_gateway.riva.service import add_riva_service
from penstock_gateway.security.limits import MAX_RECOGNIZE_BYTES

ROUTES: Sequence[Callable[[Gateway], Sequence[BaseRoute]]] = (
    health_routes, openai_routes, realtime_routes, captions_routes,
)  # fmt: skip
"""Each protocol's routes on the HTTP port: one line for each."""

SERVICES: Sequence[Callable[[Gateway, grpc.aio.Server], None]] = (add_riva_service,)
"""Each protocol's services on the gRPC port: one line for each."""


def build_app(gateway: Gateway) -> Starlette:
    """The application of the HTTP port."""
    allowed = gateway.access.origins.allowed
    cross_origin = Middleware(
        CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"],
        expose_headers=[IGNORED_HEADER, "retry-after"],
    )  # fmt: skip
    return Starlette(
        routes=[route for routes in ROUTES for route in routes(gateway)],
        middleware=[cross_origin] if allowed else [],
        exception_handlers={HTTPException: on_http_error, ClientDisconnect: on_disconnect, Exception: on_failure},
    )


def build_grpc_server(gateway: Gateway) -> grpc.aio.Server:
    """The server of the gRPC port, without a port yet. Make it in the event loop that runs it."""
    limits = [("grpc.max_receive_message_length", MAX_RECOGNIZE_BYTES), ("grpc.so_reuseport", 1)]
    server = grpc.aio.server(options=limits)
    for add_services in SERVICES:
        add_services(gateway, server)
    return server
