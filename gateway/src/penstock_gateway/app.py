"""Registration of protocols: routes of the HTTP port and services of the gRPC port."""

import grpc
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

from penstock_gateway import captions
from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http import api as http_api
from penstock_gateway.http.api import GatewayOf
from penstock_gateway.openai.routes import IGNORED_HEADER
from penstock_gateway.openai.routes import router as openai_router
from penstock_gateway.realtime.routes import router as realtime_router
from penstock_gateway.riva import service as riva
from penstock_gateway.rpc import health as grpc_health
from penstock_gateway.rpc.api import OPTIONS, KeyInterceptor, max_message_bytes
from penstock_gateway.tracing import HEADER, RequestIdInterceptor, RequestIds
from penstock_gateway.version import __version__

_ABOUT = """OpenAI's audio API and the HTTP part of its Realtime protocol, for a Penstock server.
The WebSocket `/v1/realtime` and the gRPC API are in docs/gateway.md."""
_OPEN_SERVICES = (grpc_health.SERVICE,)
_start = APIRouter()
_health = APIRouter(prefix="/health", tags=["health"])


@_health.head("/live", include_in_schema=False)
@_health.get("/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "live"}


@_health.get("", include_in_schema=False)
@_health.head("/ready", include_in_schema=False)
@_health.get("/ready", responses={503: {"description": "no replica answers, or the gateway stops"}})
async def ready(gateway: GatewayOf) -> Response:
    """A replica answers, so that a stream can start."""
    models = [group.name for group in gateway.streams.groups]
    return JSONResponse({"status": "ready" if models else "no replica", "models": models}, 200 if models else 503)


@_start.get("/", include_in_schema=False)
async def start(gateway: GatewayOf) -> HTMLResponse:
    """Says what answers here, for a browser."""
    links = {"/docs": "routes", "/health/ready": "readiness", "/v1/models": "models"}
    if gateway.config.serves_captions:
        links["/captions"] = "live captions"
    items = "".join(f'<li><a href="{path}">{path}</a> {name}</li>' for path, name in links.items())
    return HTMLResponse(
        f"<!doctype html><title>Penstock gateway</title><h1>Penstock gateway {__version__}</h1><ul>{items}</ul>"
    )


def build_app(gateway: Gateway) -> FastAPI:
    """The application of the HTTP port."""
    allowed = gateway.access.origins.allowed
    cross_origin = Middleware(
        CORSMiddleware, allow_origins=allowed, allow_methods=["GET", "POST"], allow_headers=["*"],
        expose_headers=[IGNORED_HEADER, HEADER, "retry-after"],
    )  # fmt: skip
    app = FastAPIOffline(
        title="Penstock gateway",
        description=_ABOUT,
        version=__version__,
        redoc_url=None,
        middleware=[Middleware(RequestIds), *([cross_origin] if allowed else [])],
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
    for router in (_start, _health, openai_router, realtime_router):
        app.include_router(router)
    if gateway.config.serves_captions:
        app.routes.extend(captions.routes())
    return app


def build_grpc_server(gateway: Gateway) -> grpc.aio.Server:
    """The server of the gRPC port, without a port yet. Make it in the event loop that runs it."""
    interceptors = [RequestIdInterceptor(), KeyInterceptor(gateway, {riva.SERVICE: riva.PROTOCOL}, _OPEN_SERVICES)]
    options = (("grpc.max_receive_message_length", max_message_bytes(gateway.config)), *OPTIONS)
    server = grpc.aio.server(interceptors=interceptors, options=options)
    riva.add_riva_service(gateway, server)
    grpc_health.add_health_service(gateway, server)
    return server
