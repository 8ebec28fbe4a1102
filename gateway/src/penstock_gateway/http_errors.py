"""Errors on the HTTP port, in OpenAI's form."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock_gateway.errors import ErrorCode, GatewayError

CLIENT_GONE = 499
"""A status that no client reads."""
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_body(error: GatewayError) -> dict[str, Any]:
    """The object that OpenAI's clients read: message, type, parameter and code."""
    status = error.code.status.http
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code.name.lower()}


def error_response(error: GatewayError) -> JSONResponse:
    """The rejection of an HTTP request or of a handshake."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.code is ErrorCode.INVALID_API_KEY:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": error_body(error)}, error.code.status.http, headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """A request that no route takes, or whose body is broken."""
    assert isinstance(error, HTTPException)
    kind = "invalid_request_error"
    body = {"message": error.detail, "type": kind, "param": None, "code": f"http_{error.status_code}"}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """The client has disconnected while its request was read."""
    return Response(status_code=CLIENT_GONE)


async def on_failure(request: Request, error: Exception) -> Response:
    """A fault of the gateway; Starlette logs it."""
    return error_response(GatewayError(ErrorCode.INTERNAL, "the gateway failed"))
