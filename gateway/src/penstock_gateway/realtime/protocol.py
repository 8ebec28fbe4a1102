"""The protocol of one connection: JSON, the choice of the dialect, and errors that keep the connection open.

Knows no socket: texts in, actions and texts out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock_common.audio.pcm import Remark
from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.realtime.dialect import Action, ServerEvent, new_name
from penstock_gateway.realtime.openai_dialect import OpenAIDialect
from penstock_gateway.realtime.riva_dialect import RivaDialect, is_of_riva
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import invalid, parse_object

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""The JSON text of a server event."""
_APPEND = "input_audio_buffer.append"
_CHOOSING = ("session.update", "transcription_session.update", _APPEND)
_MAX_LARGE_COMMAS = 100
"""In an event with audio; base64 has none."""


class RealtimeProtocol:
    """One connection. The first client event chooses its dialect; `is_riva` where the handshake already has."""

    def __init__(
        self,
        streams: ReplicaStreams,
        config: Config,
        is_riva: bool = False,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        model: str = "",
    ):
        """`presets`: of a client secret: the settings of its session, by the name of their dialect (`openai`, `riva`).

        `model`: the session's first one, where they name none. GatewayError where they are not accepted any more.
        """
        self._streams, self._config, self._presets, self._model = streams, config, presets or {}, model
        self.dialect: OpenAIDialect | RivaDialect
        """May change with the first client event."""
        if is_riva:
            self.dialect = self._riva()
        else:
            self.dialect = OpenAIDialect(streams, config, self._presets.get("openai", {}), model)
        self._is_chosen = is_riva
        self._client_event: object = None

    def receive(self, text: str | bytes) -> Sequence[Action]:
        """Actions of a message. A wrong one gives an `error` event and has no other effect.

        GatewayError, which ends the connection: SHAPE_RETIRED, as what follows would be read wrongly, and passing ones.
        """
        self._client_event = None
        try:
            event = _parse(text)
            self._client_event = event.get("event_id")
            if not self._is_chosen:
                self._choose(event)
            return self.dialect.receive(event)
        except GatewayError as error:
            if error.code is GatewayCode.SHAPE_RETIRED or error.code.is_passing:
                raise
            return (self.rejected(error),)

    def remark(self, remark: Remark) -> ServerEvent:
        """The server event for a remark on the stream, in its time, in both dialects."""
        return {"type": "penstock.remark", "event_id": new_name("event"), **remark.document}

    def rejected(self, error: GatewayError) -> ServerEvent:
        """The `error` event for the message that was received last."""
        return self.dialect.rejected(error, self._client_event)

    def _riva(self) -> RivaDialect:
        return RivaDialect(self._streams, self._config, self._presets.get("riva", {}), self._model)

    def _choose(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "transcription_session.update" and is_of_riva(event.get("session")):
            self.dialect = self._riva()
        self._is_chosen = kind in _CHOOSING


def _parse(text: str | bytes) -> Mapping[str, Any]:
    """The event of a message. A binary one without JSON is audio."""
    if isinstance(text, bytes) and not (text.lstrip().startswith(b"{") and b'"type"' in text):
        return {"type": _APPEND, "audio": text}
    is_large = len(text) > limits.MAX_EVENT_BYTES
    # Audio has few commas: other events take long to parse.
    is_other = is_large and (text.count(",") if isinstance(text, str) else text.count(b",")) > _MAX_LARGE_COMMAS
    event = None if is_other else parse_object(text)
    if is_other or (is_large and event is not None and event.get("type") != _APPEND):
        size = f"a message of {len(text)} bytes that is no audio is too large"
        raise GatewayError(GatewayCode.TOO_LARGE, f"{size}; accepted: {limits.MAX_EVENT_BYTES} bytes")
    if event is None:
        raise invalid("message", "is not JSON with an object; accepted: one event, with its type")
    return event
