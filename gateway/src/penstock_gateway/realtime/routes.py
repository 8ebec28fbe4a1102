"""The HTTP port's routes of the Realtime protocol: the WebSocket, client secrets, and Riva's transcription sessions."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http_body import limited
from penstock_gateway.http_errors import error_response
from penstock_gateway.json_text import parse_object
from penstock_gateway.realtime.connection import PROTOCOL, Connection
from penstock_gateway.realtime.fields import check_names, invalid, read
from penstock_gateway.realtime.items import Names
from penstock_gateway.realtime.openai_session import OpenAISession
from penstock_gateway.realtime.protocol import RealtimeProtocol
from penstock_gateway.realtime.riva_dialect import configure
from penstock_gateway.realtime.riva_session import default_session, merge
from penstock_gateway.security.client_secrets import DEFAULT_LIFETIME_S, Credential
from penstock_gateway.security.keys import ApiKey

SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_RIVA_SUBPROTOCOL = "realtime-token."
_MAX_BODY_BYTES = 64 << 10


def realtime_routes(gateway: Gateway) -> Sequence[BaseRoute]:
    """`/v1/realtime` and the two routes that make client secrets."""

    def rejection(error: GatewayError) -> Response:
        gateway.note_rejection(PROTOCOL, error)
        return error_response(error)

    async def connect(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", [])
        try:
            model = socket.query_params.get("model", "")
            key, presets = _admit(gateway, socket.headers, offered, model)
            _check_intent(socket.query_params)
            is_riva = any(name.startswith(_RIVA_SUBPROTOCOL) for name in offered)
            protocol = RealtimeProtocol(gateway.streams, gateway.config, is_riva, presets, model)
        except GatewayError as error:
            return await socket.send_denial_response(rejection(error))
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await Connection(socket, protocol, gateway, key).run()

    async def explain(request: Request) -> Response:
        """Why a handshake is rejected: a page's script cannot read that from its WebSocket."""
        try:
            offered = request.headers.get("sec-websocket-protocol", "").split(",")
            model = request.query_params.get("model", "")
            _admit(gateway, request.headers, [name.strip() for name in offered], model)
        except GatewayError as error:
            return rejection(error)
        return JSONResponse({"protocol": "websocket"})

    async def client_secrets(request: Request) -> Response:
        try:
            body = await _body(request)
            secret, expires_s, session = _client_secret(gateway, request, body)
        except GatewayError as error:
            return rejection(error)
        return JSONResponse({"value": secret, "expires_at": expires_s, "session": session})

    async def transcription_sessions(request: Request) -> Response:
        try:
            body = await _body(request)
            secret, expires_s, session = _riva_secret(gateway, request, body)
        except GatewayError as error:
            return rejection(error)
        named = {"id": Names().new("sess"), "object": "realtime.transcription_session"}
        return JSONResponse(named | session | {"client_secret": {"value": secret, "expires_at": expires_s}})

    return [
        WebSocketRoute("/v1/realtime", connect),
        Route("/v1/realtime", explain),
        Route("/v1/realtime/client_secrets", client_secrets, methods=["POST"]),
        Route("/v1/realtime/transcription_sessions", transcription_sessions, methods=["POST"]),
    ]


def _admit(gateway: Gateway, headers: Headers, offered: Sequence[str], model: str) -> Credential:
    """The credential of a handshake that would be accepted now. GatewayError for others."""
    credential = _authenticate(gateway, headers, offered)
    gateway.streams.group(model)
    gateway.streams.check_room(credential.key)
    return credential


def _authenticate(gateway: Gateway, headers: Headers, offered: Sequence[str]) -> Credential:
    """The credential of a handshake: its header, or the subprotocol that stands for it in a browser."""
    gateway.access.origins.check(headers.get("origin"), headers.get("host"))
    for name in offered:
        for prefix in (_KEY_SUBPROTOCOL, _RIVA_SUBPROTOCOL):
            if name.startswith(prefix):
                return gateway.access.read(name.removeprefix(prefix))
    return gateway.access.read_header(headers.get("authorization"))


def _key_itself(gateway: Gateway, request: Request) -> ApiKey:
    """The key of a request that makes a client secret."""
    gateway.access.origins.check(request.headers.get("origin"), request.headers.get("host"))
    return gateway.access.authenticate_key_header(request.headers.get("authorization"))


def _client_secret(gateway: Gateway, request: Request, body: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """(secret, Unix time in seconds at which it expires, session). The secret has the settings of the session."""
    key = _key_itself(gateway, request)
    check_names(body, ("expires_after", "session"), "body")
    expiry = read(body, "expires_after", dict, "", {})
    if expiry.get("anchor", "created_at") != "created_at":
        raise invalid("expires_after.anchor", "is unknown; accepted: 'created_at'")
    lifetime_s = read(expiry, "seconds", int, "expires_after", DEFAULT_LIFETIME_S)
    default = OpenAISession(gateway.config.endpoint_silence_ms or None)
    given = read(body, "session", dict, "", {})
    session = default.update(given, gateway.config)
    session.options(gateway.streams, gateway.config.language)
    secret, expires_s = gateway.access.secrets.create(key, lifetime_s, {"openai": given} if given else {})
    shown = {"id": Names().new("sess")} | session.shown(gateway.streams, gateway.config.language)
    return secret, expires_s, shown


def _riva_secret(gateway: Gateway, request: Request, body: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """The same for a session of Riva's dialect, whose settings are the body itself."""
    key = _key_itself(gateway, request)
    session = merge(default_session(gateway.streams.group(""), gateway.config.language), body)
    configure(session, gateway.streams, gateway.config)
    secret, expires_s = gateway.access.secrets.create(key, session={"riva": body} if body else {})
    return secret, expires_s, session


def _check_intent(query: Mapping[str, str]) -> None:
    if (intent := query.get("intent", "transcription")) != "transcription":
        raise invalid("intent", f"is {intent[:60]!r}; accepted: transcription")


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object of a request; empty without a body."""
    data = await limited(request, _MAX_BODY_BYTES, "body").body()
    body = parse_object(data) if data.strip() else {}
    if body is None:
        raise invalid("body", "is not JSON with an object; accepted: an object")
    return body
