"""The id of a request, by which a client finds its lines in the log: from `x-request-id`, else from `traceparent`."""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import grpc
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_TRACE = "traceparent"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The W3C's form: version, trace, span, flags."""
_current: ContextVar["tuple[str | None, str | None]"] = ContextVar("request", default=(None, None))
"""The id, and `traceparent`, of the request that a task serves."""


def current_request_id() -> str | None:
    """The id of the request that this task serves; None outside of one."""
    return _current.get()[0]


def current_trace_parent() -> str | None:
    """Its header `traceparent`, if it has one."""
    return _current.get()[1]


def choose_id(request_id: str | None, trace_parent: str | None) -> str:
    """The client's id, else that of its trace, else a new one."""
    if request_id and _ID.fullmatch(request_id):
        return request_id
    trace = _TRACE_PARENT.fullmatch(trace_parent or "")
    return trace[1] if trace else secrets.token_hex(16)


class RequestIds:
    """Middleware: gives each request and WebSocket its id, and names it in the reply."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application within the id."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        chosen = choose_id(headers.get(HEADER), headers.get(_TRACE))
        _current.set((chosen, headers.get(_TRACE)))

        async def named(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[HEADER] = chosen
            await send(message)

        await self._app(scope, receive, named)


class RequestIdInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Gives each gRPC call its id: a call is served in the task that looks up its method."""

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Looks up the method within the id."""
        request_id, trace_parent = _values(details.invocation_metadata or ())
        _current.set((choose_id(request_id, trace_parent), trace_parent))
        return await continuation(details)


def _values(metadata: Iterable[tuple[str, Any]]) -> tuple[str | None, str | None]:
    named = {key: value for key, value in metadata if isinstance(value, str)}
    return named.get(HEADER), named.get(_TRACE)
