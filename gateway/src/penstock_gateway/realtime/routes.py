"""The HTTP port's routes of the Realtime protocol: the WebSocket, client secrets, and Riva's transcription sessions."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, WithJsonSchema
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from penstock_gateway.gateway import Gateway
from penstock_gateway.http.api import ERRORS, GatewayOf, OwnKeyOf, authorization, body_schema, know, limited
from penstock_gateway.realtime.connection import RealtimeConnection
from penstock_gateway.realtime.dialect import new_name, retired
from penstock_gateway.realtime.openai_session import OpenAISession
from penstock_gateway.realtime.protocol import RealtimeProtocol
from penstock_gateway.realtime.riva_dialect import configure, default_session, is_of_riva, merge
from penstock_gateway.security.access import DEFAULT_LIFETIME_S, Credential
from penstock_gateway.validation import ClosedFields, Fields, invalid, parse_object, read_fields

SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_RIVA_SUBPROTOCOL = "realtime-token."
_MAX_BODY_BYTES = 64 << 10
router = APIRouter(prefix="/v1/realtime", tags=["Realtime"], responses=ERRORS)


class Expiry(Fields):
    """Expiry of a client secret."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int | None = None


class SecretRequest(ClosedFields):
    """The body of a request for a client secret."""

    expires_after: Annotated[dict[str, Any] | None, WithJsonSchema(Expiry.model_json_schema())] = None
    session: dict[str, Any] | None = None


class ClientSecret(BaseModel):
    """A secret, the Unix time in seconds at which it expires, and the session that it begins."""

    value: str
    expires_at: int
    session: dict[str, Any]


async def _offered(connection: HTTPConnection) -> list[str]:
    """The subprotocols of a handshake."""
    return [name.strip() for name in connection.headers.get("sec-websocket-protocol", "").split(",")]


Offered = Annotated[list[str], Depends(_offered)]


async def _admit(
    connection: HTTPConnection,
    gateway: GatewayOf,
    offered: Offered,
    model: str = "",
    intent: Literal["transcription"] = "transcription",
) -> Credential:
    """The credential of a handshake that would be accepted now. GatewayError for others."""
    gateway.access.check_page(connection.headers.get("origin"), connection.headers.get("host"))
    credential = _credential(gateway, connection, offered)
    know(connection)
    group = gateway.streams.group(model)
    if not any(each.takes_live for each in gateway.streams.groups):
        group.check_live()  # else a session may still choose another model
    gateway.streams.check_room(credential.key)
    return credential


def _credential(gateway: Gateway, connection: HTTPConnection, offered: list[str]) -> Credential:
    """Credential of the header, or of the subprotocol that stands for it in a browser."""
    for name in offered:
        for prefix in (_KEY_SUBPROTOCOL, _RIVA_SUBPROTOCOL):
            if name.startswith(prefix):
                return gateway.access.read(name.removeprefix(prefix))
    return gateway.access.read_header(authorization(connection))


Admitted = Annotated[Credential, Depends(_admit)]


@router.websocket("")
async def connect(socket: WebSocket, gateway: GatewayOf, admitted: Admitted, offered: Offered, model: str = "") -> None:
    """One connection."""
    is_riva = any(name.startswith(_RIVA_SUBPROTOCOL) for name in offered)
    protocol = RealtimeProtocol(gateway.streams, gateway.config, is_riva, admitted.session, model)
    with gateway.connections.taken(admitted.key):
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await RealtimeConnection(socket, protocol, gateway, admitted.key).run()


@router.get("")
async def explain(admitted: Admitted) -> dict[str, str]:
    """Why a handshake of the WebSocket is rejected: a page's script cannot read that from its WebSocket."""
    return {"protocol": "websocket"}


@router.post("/client_secrets", openapi_extra=body_schema("application/json", SecretRequest))
async def client_secrets(request: Request, gateway: GatewayOf, key: OwnKeyOf) -> ClientSecret:
    """A client secret with the settings of a session of OpenAI's protocol."""
    body = read_fields(SecretRequest, await _body(request), "")
    expiry, given = read_fields(Expiry, body.expires_after or {}, "expires_after"), body.session or {}
    session = OpenAISession(gateway.config.endpoint_silence_ms or None).update(given, gateway.config)
    model = session.model(gateway.streams)
    gateway.streams.check(session.options(model, gateway.config))
    lifetime_s = DEFAULT_LIFETIME_S if expiry.seconds is None else expiry.seconds
    secret, expires_s = gateway.access.secrets.create(key, lifetime_s, {"openai": given} if given else {})
    shown = {"id": new_name("sess")} | session.shown(model, gateway.config)
    return ClientSecret(value=secret, expires_at=expires_s, session=shown)


@router.post("/transcription_sessions")
async def transcription_sessions(request: Request, gateway: GatewayOf, key: OwnKeyOf) -> dict[str, Any]:
    """A session of Riva's dialect, whose settings are the body, and a client secret with them."""
    body = await _body(request)
    if body and not is_of_riva(body):
        raise retired("body", "OpenAI's beta", "/v1/realtime/client_secrets, or Riva's session with input_audio_params")
    session = merge(default_session(gateway.streams.group(""), gateway.config.language), body)
    configure(session, gateway.streams, gateway.config)
    secret, expires_s = gateway.access.secrets.create(key, session={"riva": body} if body else {})
    named = {"id": new_name("sess"), "object": "realtime.transcription_session"}
    return named | session | {"client_secret": {"value": secret, "expires_at": expires_s}}


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object of a request; empty without a body."""
    data = await limited(request, _MAX_BODY_BYTES, "body").body()
    body = parse_object(data) if data.strip() else {}
    if body is None:
        raise invalid("body", "is not JSON with an object; accepted: an object")
    return body
