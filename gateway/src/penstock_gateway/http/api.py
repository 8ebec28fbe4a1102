"""Shared parts of the HTTP port's routes: the gateway, a client's key, bodies of requests, errors in OpenAI's form."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Security
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message
from starlette.websockets import WebSocket

from penstock_common.errors import shown
from penstock_gateway import limits
from penstock_gateway.errors import KSERVE_NOT_SERVED, GatewayCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.openai_objects import error_body
from penstock_gateway.security.access import Access, only_authorization
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.validation import field_error

_T = TypeVar("_T")
CONNECTION = "connection"
"""Name of a request's `Connection` in the state of its scope."""
CLIENT_GONE = 499
"""A status that no client reads."""
_BEARER = HTTPBearer(auto_error=False, description="An API key; none where the gateway has no keys.")


class ErrorObject(BaseModel):
    """Error of a request; `code` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """The reply to a request that is rejected or has failed."""

    error: ErrorObject


ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorReply}, "5XX": {"model": ErrorReply}}
"""The error replies of each route, for the OpenAPI document."""


async def _gateway(connection: HTTPConnection) -> Gateway:
    gateway: Gateway = connection.app.state.gateway
    return gateway


GatewayOf = Annotated[Gateway, Depends(_gateway)]


async def _access(request: Request, gateway: GatewayOf, _: Annotated[object, Security(_BEARER)]) -> Access:
    gateway.access.check_page(request.headers.get("origin"), request.headers.get("host"))
    return gateway.access


def authorization(connection: HTTPConnection) -> str | None:
    """The header of that name. GatewayError for several."""
    return only_authorization(connection.headers.getlist("authorization"))


def know(connection: HTTPConnection) -> None:
    """The client has shown a key: its connection counts no longer for its address."""
    known = connection.scope.get("state", {}).get(CONNECTION)
    if known is not None:
        known.know()


def _counted(authenticate: Callable[[Access, str | None], ApiKey]) -> Any:
    async def key_of(
        request: Request, gateway: GatewayOf, access: Annotated[Access, Depends(_access)]
    ) -> AsyncIterator[ApiKey]:
        key = authenticate(access, authorization(request))
        know(request)
        with gateway.connections.taken(key):
            yield key

    return Depends(key_of)


KeyOf = Annotated[ApiKey, _counted(Access.authenticate_header)]
"""The key of a request, checked before its body is read."""


async def _upload_key(gateway: GatewayOf, key: KeyOf) -> AsyncIterator[ApiKey]:
    gateway.streams.check_room(key)
    with gateway.uploads.taken(key):
        yield key


UploadKeyOf = Annotated[ApiKey, Depends(_upload_key)]
"""The key of an upload, which counts from here to the end of the reply."""
OwnKeyOf = Annotated[ApiKey, _counted(Access.authenticate_key_header)]
"""The same for a key only, not for a client secret."""


def body_schema(media_type: str, model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself: FastAPI would read it before it checks the key.

    A field of the model is no other model: a schema within another would be referred to by a name.
    """
    return {"requestBody": {"content": {media_type: {"schema": model.model_json_schema()}}}}


def limited(
    request: Request,
    max_bytes: int,
    param: str,
    option: str = "",
    take: Callable[[int], Awaitable[None]] | None = None,
    arrival: Callable[[Awaitable[Message], float], Awaitable[Message]] = asyncio.wait_for,
) -> Request:
    """The same request; reading its body raises GatewayError for a larger one, and for one that does not go on.

    A larger one is rejected at once if its length is stated. `param`: the field that the error names; `option`: that
    of the limit; `take`: waits for room for the bytes so far; `arrival`: for the next ones, as `Budget.arrival`.
    """
    message = f"the request has more than {max_bytes:,} bytes{option and f' ({option})'}"
    too_large = GatewayError(GatewayCode.TOO_LARGE, message, param)
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated) > max_bytes:
        raise too_large
    received, is_whole = 0, False
    deadline_s = asyncio.get_running_loop().time() + limits.MAX_UPLOAD_S

    async def receive() -> Message:
        nonlocal received, is_whole
        try:
            message = await (request.receive() if is_whole else arrival(request.receive(), limits.MAX_SILENT_S))
        except asyncio.TimeoutError:
            silence = f"no part of the request arrived for {limits.MAX_SILENT_S:g} s"
            raise GatewayError(GatewayCode.STREAM_IDLE, silence) from None
        if not is_whole and asyncio.get_running_loop().time() > deadline_s:
            raise GatewayError(GatewayCode.STREAM_IDLE, f"the request has not arrived within {limits.MAX_UPLOAD_S:g} s")
        received += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if received > max_bytes:
            raise too_large
        if take is not None:
            await take(received)
        return message

    return Request(request.scope, receive)


async def while_connected(request: Request, working: Coroutine[Any, Any, _T]) -> _T | None:
    """Result or exception of the work; None if the client disconnects first."""
    work, gone = asyncio.create_task(working), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        del work, gone  # an error of the work would keep its frame, and the frame the work


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error_response(error: GatewayError) -> JSONResponse:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.code is GatewayCode.INVALID_API_KEY:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": error_body(error)}, error.code.status.http, headers)


async def on_rejection(connection: HTTPConnection, error: Exception) -> Response | None:
    """The rejection of a request or of a handshake."""
    assert isinstance(error, GatewayError)
    protocol = "realtime" if connection.url.path.startswith("/v1/realtime") else "openai"
    connection.app.state.gateway.note_rejection(protocol, error)
    response = _error_response(error)
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(response)
        return None
    return response


async def on_invalid(connection: HTTPConnection, error: Exception) -> Response | None:
    """A parameter that FastAPI does not accept."""
    assert isinstance(error, RequestValidationError | WebSocketRequestValidationError)
    details = [detail | {"loc": detail["loc"][1:]} for detail in error.errors()]  # without "query"
    return await on_rejection(connection, field_error(details, ""))


_CAPTIONS_OFF = "the captions page is off; accepted: a gateway with --captions (PENSTOCK_GATEWAY_CAPTIONS=1)"


async def on_http_error(connection: HTTPConnection, error: Exception) -> Response:
    """A request that no route takes, or whose body is broken."""
    assert isinstance(error, HTTPException)
    kind, message = "invalid_request_error", error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        path = connection.url.path
        message = f"nothing is at {shown(path)}; accepted: the routes that /docs lists"
        if path == "/captions":
            message = _CAPTIONS_OFF
        elif f"{path}/".startswith("/v2/"):
            message = KSERVE_NOT_SERVED
    body = {"message": message, "type": kind, "param": None, "code": f"http_{error.status_code}"}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def on_disconnect(connection: HTTPConnection, error: Exception) -> Response:
    """The client has disconnected while its request was read."""
    return Response(status_code=CLIENT_GONE)


async def on_failure(connection: HTTPConnection, error: Exception) -> Response:
    """A fault of the gateway; Starlette logs it."""
    return _error_response(GatewayError(GatewayCode.INTERNAL, "the gateway failed"))
