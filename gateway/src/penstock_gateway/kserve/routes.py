"""The KServe v2 routes of the HTTP port, below /v2."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.http.api import CLIENT_GONE, GatewayOf, KeyOf, limited, while_connected
from penstock_gateway.kserve.errors import invalid_request, status_of, text_of
from penstock_gateway.kserve.http_wire import HEADER_LENGTH, MAX_BODY_BYTES, HttpRequest, read_body, write_response
from penstock_gateway.kserve.model import check_model, model_config, model_metadata, server_metadata
from penstock_gateway.kserve.sequences import PROTOCOL, Sequences
from penstock_gateway.security.budget import Turns
from penstock_gateway.security.keys import ApiKey

_LARGE_BYTES = 256 << 10


class _Route(APIRoute):
    """Renders errors as a server does: {"error": "CODE: text"}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI's, with another form of errors."""
        handle = super().get_route_handler()

        async def run(request: Request) -> Response:
            try:
                return await handle(request)
            except GatewayError as error:
                request.app.state.gateway.note_rejection(PROTOCOL, error)
                waits = error.retry_after_s
                headers = {"Retry-After": str(max(1, round(waits)))} if waits is not None else {}
                return JSONResponse({"error": text_of(error)}, status_of(error).http, headers)

        return run


router = APIRouter(prefix="/v2", include_in_schema=False, route_class=_Route)
_MODEL = "/models/{model}"
_VERSION = "/models/{model}/versions/{version}"


async def _model(model: str, version: str = "") -> None:
    check_model(model, version)


ModelOf = Depends(_model)


@router.get("/health/live")
async def live() -> Response:
    """The process answers."""
    return Response()


@router.get("/health/ready")
async def ready(gateway: GatewayOf) -> Response:
    """A replica answers, so that a stream can start."""
    return Response(status_code=200 if gateway.streams.groups else 503)


@router.get("")
async def server(_: KeyOf) -> dict[str, Any]:
    """Metadata of the gateway."""
    return server_metadata()


@router.get(_MODEL, dependencies=[ModelOf])
@router.get(_VERSION, dependencies=[ModelOf])
async def metadata(_: KeyOf) -> dict[str, Any]:
    """Inputs and outputs of the model."""
    return model_metadata()


@router.get(f"{_MODEL}/ready", dependencies=[ModelOf])
@router.get(f"{_VERSION}/ready", dependencies=[ModelOf])
async def model_ready(_: KeyOf, gateway: GatewayOf) -> Response:
    """As the gateway is."""
    return await ready(gateway)


@router.get(f"{_MODEL}/config", dependencies=[ModelOf])
@router.get(f"{_VERSION}/config", dependencies=[ModelOf])
async def config(_: KeyOf, gateway: GatewayOf) -> dict[str, Any]:
    """Inputs, outputs and parameters of the model."""
    return model_config(gateway.streams.group(""))


class _Inference:
    """Shared by the requests of an application."""

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        self._parsing = Turns()

    async def read(self, body: bytes, header_length: str | None, key: ApiKey) -> HttpRequest:
        """`read_body` of a large one. 30 s of audio take 0.1 s, so a pause as long follows, for the other streams."""
        async with self._parsing.taken(key.name):
            started_s = time.monotonic()
            try:
                return read_body(body, header_length)
            finally:
                await asyncio.sleep(time.monotonic() - started_s)


async def _inference(request: Request, gateway: GatewayOf) -> _Inference:
    state = request.app.state
    if not hasattr(state, "kserve"):
        state.kserve = _Inference(Sequences(gateway.streams))
    inference: _Inference = state.kserve
    return inference


async def _body(request: Request, gateway: GatewayOf, key: ApiKey, shared: _Inference) -> HttpRequest:
    if encoding := request.headers.get("content-encoding"):
        raise invalid_request(f"Content-Encoding is {encoding[:40]!r}; accepted: none")
    reading, json_bytes = limited(request, MAX_BODY_BYTES, "body"), request.headers.get(HEADER_LENGTH)
    stated = request.headers.get("content-length", "")
    size = int(stated) if stated.isdecimal() else MAX_BODY_BYTES
    if size <= _LARGE_BYTES:
        return read_body(await reading.body(), json_bytes)
    async with gateway.messages.taken(key.name, size):
        return await shared.read(await reading.body(), json_bytes, key)


async def _wanted(
    request: Request, gateway: GatewayOf, key: KeyOf, shared: Annotated[_Inference, Depends(_inference)]
) -> HttpRequest:
    """What the body says. Its error has no traceback, which would keep the body until garbage is collected."""
    try:
        return await _body(request, gateway, key, shared)
    except GatewayError as error:
        problem = error.again()
    raise problem


@router.post(f"{_MODEL}/infer", dependencies=[ModelOf])
@router.post(f"{_VERSION}/infer", dependencies=[ModelOf])
async def infer(
    request: Request,
    key: KeyOf,
    shared: Annotated[_Inference, Depends(_inference)],
    wanted: Annotated[HttpRequest, Depends(_wanted)],
) -> Response:
    """The next part of a stream's audio; answers with what is new. Stops where the client disconnects."""
    results = await while_connected(request, shared.sequences.infer(wanted.request, key))
    if results is None:
        return Response(status_code=CLIENT_GONE)
    content, header_length = write_response(wanted, results)
    if header_length is None:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={HEADER_LENGTH: str(header_length)})


@router.api_route("/{path:path}", methods=["GET", "POST", "HEAD", "PUT", "DELETE"])
async def unknown(path: str, _: KeyOf) -> Response:
    """Every other address."""
    raise GatewayError(ErrorCode.MODEL_NOT_FOUND, f"there is no /v2/{path[:80]}")
