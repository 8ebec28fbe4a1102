"""The protocol of one connection: JSON, the choice of the dialect, and errors that keep the connection open.

Knows no socket: texts in, actions and texts out.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock_gateway.config import Config
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.realtime.dialect import Action, Dialect, Names, ServerEvent
from penstock_gateway.realtime.openai_dialect import OpenAIDialect
from penstock_gateway.realtime.openai_session import ONLY_BETA
from penstock_gateway.realtime.riva_dialect import ONLY_RIVA, RivaDialect
from penstock_gateway.realtime.vllm_dialect import VllmDialect
from penstock_gateway.security import limits
from penstock_gateway.stream.events import Event
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import invalid, parse_object

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


_CHOOSING = ("session.update", "transcription_session.update", "input_audio_buffer.append")


def encode(event: ServerEvent) -> str:
    """The JSON text of a server event."""
    return _encode(event)


_MAX_LARGE_COMMAS = 100
"""In an event with audio; base64 has none."""


class RealtimeProtocol:
    """One connection. The first client event chooses its dialect; `is_riva` where the handshake already has."""

    def __init__(
        self,
        streams: ReplicaStreams,
        config: Config,
        is_riva: bool = False,
        is_beta: bool = False,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        model: str = "",
    ):
        """`is_beta`: the handshake has the header of OpenAI's beta.

        `presets`: of a client secret: the settings of its session, by the name of their dialect (`openai`, `riva`).

        `model`: the session's first one, where they name none. GatewayError where they are not accepted any more.
        """
        self._streams, self._config, self._presets, self._model = streams, config, presets or {}, model
        self._names = Names()
        self._openai = OpenAIDialect(streams, config, self._names, self._presets.get("openai", {}), model, is_beta)
        self._is_beta = is_beta
        self._dialect: Dialect = self._riva() if is_riva else self._openai
        self._is_chosen = False
        self._client_event: object = None

    def opened(self) -> Sequence[Action]:
        """The first events of the connection. GatewayError: NO_REPLICA."""
        if isinstance(self._dialect, RivaDialect):
            return self._dialect.opened()
        created = self._openai.opened()[0]
        assert isinstance(created, dict)
        # The two fields of vLLM's `session.created`; OpenAI's clients do not read them.
        return [created | {"id": created["session"]["id"], "created": int(time.time())}]

    def receive(self, text: str | bytes) -> Sequence[Action]:
        """Actions of a message. A wrong one gives an `error` event and has no other effect."""
        self._client_event = None
        try:
            event = _parse(text)
            self._client_event = event.get("event_id")
            if not self._is_chosen:
                self._choose(event)
            return self._dialect.receive(event)
        except GatewayError as error:
            return (self.rejected(error),)

    def result(self, event: Event) -> list[ServerEvent]:
        """The server events for an event of the stream."""
        return self._dialect.result(event)

    def failed(self, error: GatewayError) -> list[ServerEvent]:
        """The server events for the loss of the stream."""
        return self._dialect.failed(error)

    def rejected(self, error: GatewayError) -> ServerEvent:
        """The `error` event for the message that was received last."""
        return self._dialect.rejected(error, self._client_event)

    def _riva(self) -> RivaDialect:
        return RivaDialect(self._streams, self._config, self._names, self._presets.get("riva", {}), self._model)

    def _choose(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "transcription_session.update" and not isinstance(self._dialect, RivaDialect):
            self._choose_update(event.get("session"))
        elif kind == "session.update" and "session" not in event and "model" in event:
            self._dialect = VllmDialect(self._streams, self._config)
        self._is_chosen = kind in _CHOOSING

    def _choose_update(self, session: object) -> None:
        """Riva's event, or that of OpenAI's beta: its fields tell, or the header. GatewayError for fields of both."""
        names = session.keys() if isinstance(session, dict) else ()
        of_riva, of_beta = [name for name in names if name in ONLY_RIVA], [name for name in names if name in ONLY_BETA]
        if of_riva and of_beta:
            raise invalid(
                f"session.{of_beta[0]}", f"is OpenAI's, session.{of_riva[0]} is Riva's; accepted: one dialect"
            )
        if of_beta or (self._is_beta and not of_riva):
            self._openai.begin_beta()
        else:
            self._dialect = self._riva()


def _parse(text: str | bytes) -> Mapping[str, Any]:
    if len(text) > limits.LARGE_FRAME_BYTES:  # audio: other events take long to parse
        commas = text.count(",") if isinstance(text, str) else text.count(b",")
        if commas > _MAX_LARGE_COMMAS:
            size = f"a message of {len(text)} bytes that is no audio is too large"
            raise GatewayError(ErrorCode.TOO_LARGE, f"{size}; accepted: {limits.LARGE_FRAME_BYTES} bytes")
    event = parse_object(text)
    if event is None:
        raise invalid("message", "is not JSON with an object; accepted: one event, with its type")
    return event
