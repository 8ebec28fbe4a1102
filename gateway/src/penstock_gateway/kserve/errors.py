"""The gateway's errors as a server's: its codes in the message, its status codes."""

from typing import NamedTuple

from penstock_gateway.errors import ErrorCode, GatewayError

_MAX_CHARS = 500


class Status(NamedTuple):
    """The status of an error."""

    grpc: str
    http: int


_INVALID, _UNAVAILABLE = Status("INVALID_ARGUMENT", 400), Status("UNAVAILABLE", 503)
_SERVER: dict[str, Status] = {
    "STREAM_LIMIT": _UNAVAILABLE,
    "SERVER_DRAINING": _UNAVAILABLE,
    "PHRASE_MEMORY_FULL": _UNAVAILABLE,
    "AUDIO_MEMORY_FULL": _UNAVAILABLE,
    "STREAM_NOT_OPEN": Status("NOT_FOUND", 404),
    "STREAM_LOST": Status("INTERNAL", 500),
    "AUDIO_INVALID": _INVALID,
    "AUDIO_TOO_LONG": _INVALID,
    "OPTION_INVALID": _INVALID,
    "PHRASES_INVALID": _INVALID,
    "REQUEST_INVALID": _INVALID,
}
"""A server's codes, as docs/serving.md has them."""
_OF_GATEWAY = {
    ErrorCode.FIELD_INVALID: "OPTION_INVALID",
    ErrorCode.AUDIO_INVALID: "AUDIO_INVALID",
    ErrorCode.STREAMS_EXHAUSTED: "STREAM_LIMIT",
    ErrorCode.NO_REPLICA: "SERVER_DRAINING",
    ErrorCode.STREAM_LOST: "STREAM_LOST",
    ErrorCode.STREAM_IDLE: "STREAM_NOT_OPEN",
    ErrorCode.STREAM_TOO_OLD: "STREAM_NOT_OPEN",
}
"""Codes whose meaning a server has a code for, so that clients react as they do to a server."""


def code_of(error: GatewayError) -> str:
    """The code that a client gets."""
    if error.server_code in _SERVER:
        return str(error.server_code)
    return _OF_GATEWAY.get(error.code, error.code.name)


def status_of(error: GatewayError) -> Status:
    """The status of the code that a client gets."""
    return _SERVER.get(code_of(error)) or Status(error.code.status.grpc, error.code.status.http)


def text_of(error: GatewayError) -> str:
    """The message that a client gets, as "CODE: text"."""
    return f"{code_of(error)}: {error.message}"[:_MAX_CHARS]


def shown_error(error: GatewayError) -> tuple[str, str]:
    """The gRPC status of an error and its message."""
    return status_of(error).grpc, text_of(error)


def invalid_request(message: str) -> GatewayError:
    """A request that has not the form of `asr`."""
    return GatewayError(ErrorCode.FIELD_INVALID, message, server_code="REQUEST_INVALID")


def invalid_option(message: str) -> GatewayError:
    """A wrong request parameter."""
    return GatewayError(ErrorCode.FIELD_INVALID, message, server_code="OPTION_INVALID")


def not_open(stream_id: object, reason: str) -> GatewayError:
    """A request of a stream that is not open."""
    message = f"stream {stream_id!r} is not open: {reason}"
    return GatewayError(ErrorCode.FIELD_INVALID, message, server_code="STREAM_NOT_OPEN")
