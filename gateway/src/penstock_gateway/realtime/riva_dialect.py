"""Riva's Realtime dialect as a state machine: deltas bring the whole text so far, a commit only confirms a message.

Knows no socket. `runtime_config.force_eou` of an append ends a segment, `input_audio_buffer.done` the stream.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from penstock_client import Word
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError, shown, shown_names
from penstock_gateway.realtime.dialect import (
    END_SEGMENT,
    FINISH,
    Action,
    Audio,
    Configure,
    Names,
    Rejected,
    ServerEvent,
    read_audio,
)
from penstock_gateway.realtime.riva_session import (
    WITH_HEADER,
    default_session,
    merge,
    raw_format,
    recognition_config,
)
from penstock_gateway.riva.request_mapping import is_forced_end, map_request
from penstock_gateway.stream.events import Event, Final, Partial, confidence
from penstock_gateway.stream.live_stream import Streams
from penstock_gateway.validation import Fields, invalid, read_fields

_OWN = ("id", "object", "client_secret")
"""Fields of a session that clients send back."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class SessionUpdate(Fields):
    """`transcription_session.update`."""

    session: dict[str, Any] | None = None


class RuntimeConfig(Fields):
    """Fields of an append."""

    runtime_config: dict[str, Any] | None = None


class RivaDialect:
    """One connection."""

    def __init__(self, streams: Streams, config: Config, names: Names, given: Mapping[str, Any], model: str = ""):
        """`given`: settings of the client's secret; `model`: where they have none. GatewayError names a wrong one."""
        self._streams, self._config, self._names = streams, config, names
        self._session = merge(default_session(streams.group(model), config.language), given)
        self._rejected = Rejected()
        self._is_configured = False
        self._is_done = False
        self._text = ""  # the last delta
        self._item, self._previous = names.new("msg"), names.new("msg")
        self._forced: deque[bool] = deque()  # ends of segments that are not answered yet: True discards the segment

    def opened(self) -> list[Action]:
        """The first event of a connection whose handshake has a token of this dialect."""
        conversation = {"id": self._names.new("conv"), "object": "realtime.conversation"}
        return [self._event("conversation.created", conversation=conversation)]

    def receive(self, event: Mapping[str, Any]) -> Sequence[Action]:
        """Actions of a client event. GatewayError for a wrong one, which then has no effect."""
        kind = event.get("type")
        handler = {
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
            "input_audio_buffer.done": self._done,
            "transcription_session.update": self._update,
        }.get(str(kind))
        if handler is None:
            accepted = "transcription_session.update, input_audio_buffer.append, .commit, .clear and .done"
            raise invalid("type", f"is {shown(kind)}; accepted: {accepted}")
        if self._is_done:
            raise invalid("type", f"is {shown(kind)} after input_audio_buffer.done; accepted: nothing")
        return handler(event)

    def result(self, event: Event) -> list[ServerEvent]:
        """The server events for an event of the stream."""
        discard = bool(self._forced) and self._forced[0]
        if isinstance(event, Partial):
            if discard or not event.text or event.text == self._text:
                return []
            self._text = event.text
            return [self._event(f"{_TRANSCRIPTION}.delta", item_id=self._item, content_index=0, delta=event.text)]
        if event.forced and self._forced:
            self._forced.popleft()
        self._text = ""
        is_last = event.is_last and self._is_done
        return [self._completed(event, is_last)] if is_last or (not discard and (event.text or event.forced)) else []

    def failed(self, error: GatewayError) -> list[ServerEvent]:
        """The stream is lost."""
        return [self.rejected(error, None)]

    def rejected(self, error: GatewayError, client_event: object) -> ServerEvent:
        """The `error` event for a client event; `client_event` is that event's own id."""
        body = {
            "type": "transcription_error",
            "code": error.code.name.lower(),
            "message": error.message,
            "param": error.param,
            "event_id": client_event if isinstance(client_event, str) else None,
        }
        return self._event("error", error=body)

    def _update(self, event: Mapping[str, Any]) -> list[Action]:
        with self._rejected.updating():
            given = read_fields(SessionUpdate, event, "").session or {}
            session = merge(self._session, given)
            configured, ignored = self._configuration(session)
        self._session = session
        ignored = [*(name for name in given if name not in (*session, *_OWN)), *ignored]
        named = {"penstock_ignored": shown_names(ignored)} if ignored else {}
        return [configured, self._event("transcription_session.updated", session=session, **named)]

    def _configuration(self, session: Mapping[str, Any]) -> tuple[Configure, Sequence[str]]:
        configured = configure(session, self._streams, self._config)
        self._is_configured = True
        return configured

    def _append(self, event: Mapping[str, Any]) -> Sequence[Action]:
        self._rejected.check()
        data = read_audio(event)
        runtime = read_fields(RuntimeConfig, event, "").runtime_config or {} if "runtime_config" in event else {}
        is_end = is_forced_end({key: str(value) for key, value in runtime.items()})
        actions: list[Action] = [] if self._is_configured else [self._configuration(self._session)[0]]
        actions.append(Audio(data))
        if is_end:
            self._forced.append(False)
            actions.append(END_SEGMENT)
        return actions

    def _commit(self, event: Mapping[str, Any]) -> list[Action]:
        return [self._event("input_audio_buffer.committed", previous_item_id=self._previous, item_id=self._item)]

    def _clear(self, event: Mapping[str, Any]) -> list[Action]:
        self._forced.append(True)
        return [END_SEGMENT, self._event("input_audio_buffer.cleared")]

    def _done(self, event: Mapping[str, Any]) -> list[Action]:
        self._is_done = True
        return [FINISH]

    def _completed(self, event: Final, is_last: bool) -> ServerEvent:
        words = [_word(word) for word in event.words]
        completed = self._event(
            f"{_TRANSCRIPTION}.completed",
            item_id=self._item,
            content_index=0,
            transcript=event.text,
            words_info={"words": words},
            is_last_result=is_last,
        )
        self._previous, self._item = self._item, self._names.new("msg")
        return completed

    def _event(self, kind: str, **fields: Any) -> ServerEvent:
        return {"event_id": self._names.new("event"), "type": kind, **fields}


def configure(session: Mapping[str, Any], streams: Streams, config: Config) -> tuple[Configure, Sequence[str]]:
    """Stream options of a session, and the names of fields without an effect. GatewayError names a wrong field."""
    recognition = recognition_config(session)
    group = streams.group(recognition.model)
    group.check_live()
    request = map_request(recognition, group, config)
    has_header = session["input_audio_format"] == WITH_HEADER
    return Configure(raw_format(session), request.options, has_header), request.ignored


def _word(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start_time": word.start_ms,
        "end_time": word.end_ms,
        "confidence": confidence(word),
        "speaker_tag": word.speaker or 0,
    }
