"""The errors that a client of the gateway can get, with their status in each protocol. Codes are stable."""

from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

from penstock_gateway import limits

KSERVE_NOT_SERVED = "KServe is not served by the gateway; accepted: a server's own ports (8000 HTTP, 8001 gRPC)"
_TRY_AGAIN_LATER = 1013
_MAX_NAME_CHARS, _MAX_NAMES_CHARS = 90, 1000


class ErrorStatus(NamedTuple):
    """Meaning of a code, and its status in each protocol."""

    meaning: str
    http: int
    websocket: int
    """The code that an open WebSocket is closed with."""
    grpc: str
    """Name of the gRPC status code."""


class GatewayCode(Enum):
    """The code of a `GatewayError`; docs/gateway.md has this table."""

    INVALID_API_KEY = ErrorStatus("the API key is missing or wrong", 401, 4401, "UNAUTHENTICATED")
    ORIGIN_REJECTED = ErrorStatus("the page's origin, or the host, is not allowed", 403, 4403, "PERMISSION_DENIED")
    MODEL_NOT_FOUND = ErrorStatus("no replica group has this name", 404, 1008, "NOT_FOUND")
    FILES_ONLY = ErrorStatus("the model takes files, not live audio", 400, 1008, "INVALID_ARGUMENT")
    FIELD_INVALID = ErrorStatus("a field of the request is wrong or not supported", 400, 1008, "INVALID_ARGUMENT")
    SHAPE_RETIRED = ErrorStatus("the session has the shape of OpenAI's beta or of vLLM", 400, 1008, "INVALID_ARGUMENT")
    SPEAKERS_NOT_SERVED = ErrorStatus(
        "speakers are asked for, and no replica has a speaker model", 400, 1008, "INVALID_ARGUMENT"
    )
    AUDIO_INVALID = ErrorStatus("the audio cannot be decoded", 400, 1008, "INVALID_ARGUMENT")
    TOO_LARGE = ErrorStatus("a message, an upload or a recording is too large", 413, 1009, "RESOURCE_EXHAUSTED")
    STREAMS_EXHAUSTED = ErrorStatus(
        "no streams, uploads or connections of the key, or streams of the replicas, are free",
        429,
        1013,
        "RESOURCE_EXHAUSTED",
    )
    QUOTA_REACHED = ErrorStatus("the key has reached its quota of requests or audio", 429, 1013, "RESOURCE_EXHAUSTED")
    NO_REPLICA = ErrorStatus("no replica answers", 503, 1013, "UNAVAILABLE")
    STREAM_LOST = ErrorStatus(
        "the stream was lost and no equal replica had room, or the gateway stops", 503, 1013, "UNAVAILABLE"
    )
    STREAM_IDLE = ErrorStatus(
        "no audio for an hour, for some streams for `--idle-seconds`, or a slow request", 408, 4408, "DEADLINE_EXCEEDED"
    )
    STREAM_TOO_OLD = ErrorStatus("the stream reached the age limit", 408, 1013, "OUT_OF_RANGE")
    RESULTS_UNREAD = ErrorStatus("the client did not read its results for 10 s", 408, 4408, "DEADLINE_EXCEEDED")
    OVERLOADED = ErrorStatus("no memory, disk, process, descriptor or connection is left", 503, 1013, "UNAVAILABLE")
    INTERNAL = ErrorStatus("the gateway failed", 500, 1011, "INTERNAL")

    @property
    def status(self) -> ErrorStatus:
        """Meaning and status codes."""
        return self.value

    @property
    def is_passing(self) -> bool:
        """True where a new connection may succeed. An open WebSocket is then closed without an `error` event, which
        some clients take for the end of the call.
        """
        return self.status.websocket == _TRY_AGAIN_LATER


class GatewayError(Exception):
    """A request or a stream is rejected or has failed. Each protocol renders it in its own form."""

    def __init__(self, code: GatewayCode, message: str, param: str | None = None, retry_after_s: float | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        """One line for the client: what was wrong and what is accepted."""
        self.param = param
        """The field that was wrong, in the protocol's own name."""
        is_busy = code.status.http in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        self.retry_after_s = retry_after_s or (limits.RETRY_AFTER_S if is_busy else None)
        """Seconds after which a new attempt makes sense; None if it does not."""

    def again(self) -> "GatewayError":
        """The same error without a traceback, to be kept: a traceback keeps all that its frames hold, such as audio."""
        return GatewayError(self.code, self.message, self.param, self.retry_after_s)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def shown_names(names: Iterable[str], max_chars: int = _MAX_NAMES_CHARS) -> list[str]:
    """Names of fields without an effect, in printable ASCII, for a header or an event: they are the client's.

    As many as have room, with a comma each, and how many more there are.
    """
    every, listed = list(dict.fromkeys(names)), list[str]()
    left = max_chars - len(f",and {len(every):,} more")
    for place, name in enumerate(every):
        text = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
        text = text if len(text) <= _MAX_NAME_CHARS else f"{text[:_MAX_NAME_CHARS]}..."
        left -= len(text) + 1
        if left < 0:
            return [*listed, f"and {len(every) - place:,} more"]
        listed.append(text.strip() or "''")
    return listed
