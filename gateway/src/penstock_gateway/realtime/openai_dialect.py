"""OpenAI's Realtime transcription protocol as a state machine: client events and stream events in, server events out.

Knows no socket. An item is a segment: its deltas come while it is spoken, `committed` and `completed` at its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError, shown_names
from penstock_gateway.http.openai_objects import error_body, logprobs, speaker_name
from penstock_gateway.realtime.dialect import (
    END_SEGMENT,
    Action,
    AppendAudio,
    Configure,
    Dialect,
    ServerEvent,
    SessionUpdate,
    new_name,
    read_audio,
    retired,
)
from penstock_gateway.realtime.openai_session import (
    INTERIM,
    LOGPROBS,
    WORDS,
    OpenAISession,
    SessionModel,
    SessionTranscription,
)
from penstock_gateway.stream.events import Event, Final, Partial, confidence, speaker_turns
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import read_fields

TRANSCRIPTION = "conversation.item.input_audio_transcription"
COMMIT_EMPTY = "input_audio_buffer_commit_empty"


@dataclass
class Item:
    """The segment in progress, once it has words."""

    name: str
    sent: str = field(default="")
    """The stable text that deltas have brought so far."""
    interim: str = field(default="")
    """Interim text shown last."""

    def advance(self, text: str, stable_chars: int) -> str:
        """Takes the segment's text so far; returns the stable text that is new. `interim` becomes the rest."""
        stable = text[:stable_chars]
        delta = stable[len(self.sent) :] if stable.startswith(self.sent) else ""
        self.sent += delta
        self.interim = text[len(self.sent) :] if text.startswith(self.sent) else ""
        return delta


class OpenAIDialect(Dialect):
    """One connection."""

    accepted = "session.update, input_audio_buffer.append, .commit and .clear"

    def __init__(self, streams: ReplicaStreams, config: Config, given: Mapping[str, Any], model: str = ""):
        """`given`: settings of the client's secret; `model`: where they have none. GatewayError names a wrong one."""
        super().__init__(streams, config)
        self._handlers = {
            "input_audio_buffer.append": self._append,
            "session.update": self._update,
            "transcription_session.update": self._reject_beta,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
        }
        first = OpenAISession(config.endpoint_silence_ms or None, SessionTranscription(model=model))
        self._session = first.update(given, config)
        self._session_name = new_name("sess")
        self._configured: Configure | None = None
        self._known: tuple[str | None, str | None, SessionModel] | None = None  # model and delay that the session names
        self._item: Item | None = None
        self._previous: str | None = None
        self._has_audio = False  # since the last commit or clear
        self._segment_start_s = 0.0  # in the time of the stream
        self._offset_s = 0.0  # audio of the streams before

    def opened(self) -> list[Action]:
        """The first event of a connection."""
        return [self._event("session.created", session=self._shown_session(), **self._unused(self._session))]

    def result(self, event: Event) -> list[ServerEvent]:
        """The server events for an event of the stream."""
        discard = bool(self._forced) and self._forced[0]
        if isinstance(event, Partial):
            return [] if discard else self._partial(event)
        return self._final(event, discard)

    def failed(self, error: GatewayError) -> list[ServerEvent]:
        """The stream is lost: `failed` for the item in progress and for each commit without an answer.

        Then `error`, where the loss does not pass.
        """
        pending = max(int(self._item is not None), sum(not discard for discard in self._forced))
        events = []
        for _ in range(pending):
            name, self._item = (self._item.name if self._item else new_name("item")), None
            events.append(
                self._event(f"{TRANSCRIPTION}.failed", item_id=name, content_index=0, error=error_body(error))
            )
        self._forced.clear()
        return events if error.code.is_passing else [*events, self.rejected(error, None)]

    def rejected(self, error: GatewayError, client_event: object) -> ServerEvent:
        """The `error` event for a client event; `client_event` is that event's own id."""
        named = client_event if isinstance(client_event, str) else None
        return self._event("error", error=error_body(error) | {"event_id": named})

    def _reject_beta(self, event: Mapping[str, Any]) -> list[Action]:
        current = "session.update with session.audio.input, or Riva's session with input_audio_params"
        raise retired("transcription_session.update", "OpenAI's beta", current)

    def _update(self, event: Mapping[str, Any]) -> list[Action]:
        if "model" in event:
            raise retired("model", "vLLM's", "session.audio.input.transcription.model")
        with self._rejected.updating(self._configured is not None):
            session = self._session.update(read_fields(SessionUpdate, event, "").session or {}, self._config)
            configured = self._configure(session)
        self._session = session
        updated = self._event("session.updated", session=self._shown_session(), **self._unused(session))
        if configured == self._configured:
            return [updated]
        self._configured = configured
        return [configured, updated]

    def _append(self, event: Mapping[str, Any]) -> Sequence[Action]:
        self._rejected.check()
        data = read_audio(event)
        if not data:
            return () if self._configured is None else (AppendAudio(data),)
        self._has_audio = True
        if self._configured is None:
            self._configured = self._configure(self._session)
            return self._configured, AppendAudio(data)
        return (AppendAudio(data),)

    def _commit(self, event: Mapping[str, Any]) -> list[Action]:
        if "final" in event:
            raise retired("final", "vLLM's", "input_audio_buffer.commit without it, after session.update")
        if not self._has_audio:
            message = "the input audio buffer is empty: append audio before a commit"
            error = self.rejected(GatewayError(GatewayCode.FIELD_INVALID, message), event.get("event_id"))
            error["error"]["code"] = COMMIT_EMPTY
            return [error]
        self._has_audio = False
        self._forced.append(False)
        return [END_SEGMENT]

    def _clear(self, event: Mapping[str, Any]) -> list[Action]:
        cleared = self._event("input_audio_buffer.cleared")
        if not self._has_audio:
            return [cleared]
        self._has_audio = False
        self._forced.append(True)
        return [END_SEGMENT, cleared]

    def _partial(self, event: Partial) -> list[ServerEvent]:
        if not event.text:
            return []
        events = []
        if self._item is None:
            events = self._start_item(event)
        assert self._item is not None
        shown_before = self._item.interim
        delta = self._item.advance(event.text, event.stable_chars)
        has_interim = INTERIM in self._session.include
        if delta or (has_interim and self._item.interim != shown_before):
            events.append(self._delta(delta, event.audio_processed_s if has_interim else None))
        return events

    def _start_item(self, event: Event) -> list[ServerEvent]:
        self._item = Item(new_name("item"))
        if self._session.silence_ms is None:
            return []
        chunk_s = self._model(self._session).group.chunk_ms / 1000
        start_s = event.words[0].start_ms / 1000 if event.words else event.audio_processed_s - 2 * chunk_s
        start_s = max(start_s, self._segment_start_s)  # the first word is in the last chunk, or began in the one before
        return [
            self._event(
                "input_audio_buffer.speech_started", audio_start_ms=self._session_ms(start_s), item_id=self._item.name
            )
        ]

    def _final(self, event: Final, discard: bool) -> list[ServerEvent]:
        is_commit = event.forced and bool(self._forced) and not self._forced.popleft()
        events = []
        if not discard and (event.text or self._item is not None or is_commit):
            events = self._complete(event)
        self._item = None
        self._segment_start_s = event.end_s
        if event.is_last:
            self._offset_s += event.end_s
            self._segment_start_s = 0.0
        return events

    def _complete(self, event: Final) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        if self._item is None and event.text:
            events += self._start_item(event)
        item = self._item or Item(new_name("item"))
        self._item = item
        if delta := item.advance(event.text, len(event.text)):
            events.append(self._delta(delta, event.audio_processed_s if INTERIM in self._session.include else None))
        if self._session.silence_ms is not None and event.text:
            end_ms = self._session_ms(event.end_s)
            events.append(self._event("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=item.name))
        events.append(self._event("input_audio_buffer.committed", previous_item_id=self._previous, item_id=item.name))
        content = {"type": "input_audio", "transcript": None}
        shown_item = {
            "id": item.name, "object": "realtime.item", "type": "message", "role": "user", "status": "completed",
            "content": [content],
        }  # fmt: skip
        events.append(self._event("conversation.item.added", previous_item_id=self._previous, item=shown_item))
        if self._has_speakers:
            turns = speaker_turns(event) if event.words else []
            events += [self._turn(item.name, index, turn) for index, turn in enumerate(turns)]
        events.append(self._completed(item.name, event))
        self._previous = item.name
        return events

    def _completed(self, name: str, event: Final) -> ServerEvent:
        seconds = round(event.end_s - self._segment_start_s, 3)
        fields: dict[str, Any] = {"usage": {"type": "duration", "seconds": max(0.0, seconds)}}
        if LOGPROBS in self._session.include:
            fields["logprobs"] = logprobs(event.words)
        if WORDS in self._session.include:
            fields["words"] = [self._word(word) for word in event.words]
        return self._event(f"{TRANSCRIPTION}.completed", item_id=name, content_index=0, transcript=event.text, **fields)

    def _delta(self, delta: str, processed_s: float | None) -> ServerEvent:
        assert self._item is not None
        event = self._event(f"{TRANSCRIPTION}.delta", item_id=self._item.name, content_index=0, delta=delta)
        if processed_s is not None:
            event["interim"] = self._item.interim
            event["audio_end_ms"] = self._session_ms(processed_s)
        return event

    def _word(self, word: Word) -> dict[str, Any]:
        start, end = (round(self._offset_s + ms / 1000, 3) for ms in (word.start_ms, word.end_ms))
        speaker = {"speaker": speaker_name(word.speaker)} if self._has_speakers else {}
        return {"word": word.text, "start": start, "end": end, "confidence": round(confidence(word), 4), **speaker}

    @property
    def _has_speakers(self) -> bool:
        return self._session.transcription.asked_speakers is not None

    def _turn(self, name: str, index: int, turn: Final) -> ServerEvent:
        """A part of an item in which one speaks."""
        first, last = self._word(turn.words[0]), self._word(turn.words[-1])
        return self._event(
            f"{TRANSCRIPTION}.segment",
            item_id=name,
            content_index=0,
            id=f"{name}_seg_{index}",
            start=first["start"],
            end=last["end"],
            speaker=first["speaker"],
            text=turn.text,
        )

    def _session_ms(self, stream_s: float) -> int:
        """Milliseconds of all audio of the session, from seconds of the stream's."""
        return round((self._offset_s + stream_s) * 1000)

    def _configure(self, session: OpenAISession) -> Configure:
        options = session.options(self._model(session), self._config)
        self._streams.check(options)
        return Configure(session.format.raw, options)

    def _model(self, session: OpenAISession) -> SessionModel:
        """Looked up once for a model: that of a live session stays while no server answers or the gateway stops."""
        model, delay = session.transcription.model, session.transcription.delay
        if self._known is None or self._known[:2] != (model, delay):
            self._known = model, delay, session.model(self._streams)
        return self._known[2]

    def _unused(self, session: OpenAISession) -> dict[str, Any]:
        """The names of what has no effect."""
        names = session.unused(self._model(session), self._config)
        return {"penstock_ignored": shown_names(names)} if names else {}

    def _shown_session(self) -> dict[str, Any]:
        return {"id": self._session_name} | self._session.shown(self._model(self._session), self._config)
