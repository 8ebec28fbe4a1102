"""Where protocols register: routes of the HTTP port and services of the gRPC port."""

import grpc
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from penstock_gateway import captions, http_api
from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.grpc_api import OPTIONS, KeyInterceptor
from penstock_gateway.http_api import GatewayOf
from penstock_gateway.openai.routes import IGNORED_HEADER
from penstock_gateway.openai.routes import router as openai_router
from penstock_gateway.realtime.routes import router as realtime_router
from penstock_gateway.riva import service as riva
from penstock_gateway.version import __version__

_ABOUT = """OpenAI's audio API and the HTTP part of its Realtime protocol, for a Penstock server.
The WebSocket `/v1/realtime` and Riva's gRPC API are in docs/gateway.md."""
_PROTOCOLS = {riva.SERVICE: riva.PROTOCOL}
_OPEN_SERVICES = ("grpc.health.v1.Health",)
_health = APIRouter(prefix="/health", tags=["health"])


@_health.head("/live", include_in_schema=False)
@_health.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "live"}


@_health.head("/ready", include_in_schema=False)
@_health.get("/ready", responses={503: {"description": "no replica answers, or the gateway stops"}})
async def ready(gateway: GatewayOf) -> Response:
    """A replica answers, so that a stream can start."""
    models = [group.name for group in gateway.streams.groups]
    return JSONResponse({"status": "ready" if models else "no replica", "models": models}, 200 if models else 503)


def build_app(gateway: Gateway) -> FastAPI:
    """The application of the HTTP port."""
    allowed = gateway.access.origins.allowed
    cross_origin = Middleware(
        CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"],
        expose_headers=[IGNORED_HEADER, "retry-after"],
    )  # fmt: skip
    app = FastAPIOffline(
        title="Penstock gateway",
        description=_ABOUT,
        version=__version__,
        redoc_url=None,
        middleware=[cross_origin] if allowed else [],
        exception_handlers={
            GatewayError: http_api.on_rejection,
            RequestValidationError: http_api.on_invalid,
            WebSocketRequestValidationError: http_api.on_invalid,
            HTTPException: http_api.on_http_error,
            ClientDisconnect: http_api.on_disconnect,
            Exception: http_api.on_failure,
        },
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.gateway = gateway
    for router in (_health, openai_router, realtime_router):
        app.include_router(router)
    if gateway.config.captions:
        app.routes.extend(captions.routes())
    return app


def build_grpc_server(gateway: Gateway) -> grpc.aio.Server:
    """The server of the gRPC port, without a port yet. Make it in the event loop that runs it."""
    server = grpc.aio.server(interceptors=[KeyInterceptor(gateway, _PROTOCOLS, _OPEN_SERVICES)], options=OPTIONS)
    riva.add_riva_service(gateway, server)
    return server
