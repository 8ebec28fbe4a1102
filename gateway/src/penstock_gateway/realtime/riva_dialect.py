"""Riva's Realtime dialect as a state machine: deltas bring the whole text so far, a commit only confirms a message.

Knows no socket. `runtime_config.force_eou` of an append ends a segment, `input_audio_buffer.done` the stream.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Annotated, Any, Literal

from google.protobuf import json_format

from penstock_common.audio.pcm import RawEncoding, RawFormat
from penstock_common.errors import shown
from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError, shown_names
from penstock_gateway.limits import MAX_CHANNELS
from penstock_gateway.realtime.dialect import (
    END_SEGMENT,
    FINISH,
    Action,
    AppendAudio,
    Configure,
    Dialect,
    ServerEvent,
    SessionUpdate,
    new_name,
    read_audio,
)
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.request_mapping import (
    FORCE_EOU,
    MAX_RATE_HZ,
    MIN_RATE_HZ,
    changed,
    is_forced_end,
    map_request,
)
from penstock_gateway.stream.events import Event, Final, Partial, confidence
from penstock_gateway.stream.options import ModelGroup, shown_language
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import NO_EFFECT, Fields, between, invalid, read_fields

WITH_HEADER = "none"
_CODINGS: Mapping[str, RawEncoding] = {
    "pcm16": "s16le",
    WITH_HEADER: "s16le",
    "g711_ulaw": "mulaw",
    "g711_alaw": "alaw",
}
_ONLY_HERE = (
    "input_audio_params", "recognition_config", "speaker_diarization", "word_boosting", "endpointing_config",
)  # fmt: skip
"""Sections that a session of OpenAI's beta does not have."""
_SECTIONS = ("input_audio_transcription", *_ONLY_HERE)
_DIARIZATION = {"enable_speaker_diarization": False, "max_speaker_count": 8}
"""Section as Riva's client sends it where it asks for nothing."""
_OWN = ("id", "object", "client_secret")
"""Fields of a session that clients send back."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class RivaAudioParams(Fields):
    """`input_audio_params`."""

    sample_rate_hz: Annotated[int, between(MIN_RATE_HZ, MAX_RATE_HZ)] | None = None
    num_channels: Annotated[int, between(1, MAX_CHANNELS)] | None = None


class RivaAudio(Fields):
    """Audio format of a session."""

    input_audio_format: Literal["pcm16", "none", "g711_ulaw", "g711_alaw"]
    input_audio_params: RivaAudioParams


def default_session(group: ModelGroup, only_language: str) -> dict[str, Any]:
    """The session before a client's `transcription_session.update`."""
    return {
        "modalities": ["text"],
        "input_audio_format": "pcm16",
        "input_audio_transcription": {
            "language": shown_language(group, None, only_language),
            "model": group.name,
            "prompt": "",
        },
        "input_audio_params": {"sample_rate_hz": 16_000, "num_channels": 1},
        "recognition_config": {
            "max_alternatives": 1,
            "enable_automatic_punctuation": False,
            "enable_word_time_offsets": False,
            "enable_profanity_filter": False,
            "enable_verbatim_transcripts": True,
            "custom_configuration": "",
        },
        "speaker_diarization": dict(_DIARIZATION),
        "word_boosting": {"enable_word_boosting": False, "word_boosting_list": []},
        "endpointing_config": {
            "start_history": 0,
            "start_threshold": 0.0,
            "stop_history": 0,
            "stop_threshold": 0.0,
            "stop_history_eou": 0,
            "stop_threshold_eou": 0.0,
        },
    }


def is_of_riva(session: object) -> bool:
    """Whether a session has a section of this dialect. Others may be of OpenAI's beta, whose pcm16 has another rate."""
    return isinstance(session, Mapping) and any(name in session for name in _ONLY_HERE)


def merge(session: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The session with the fields that a client gave; fields without a meaning here are dropped."""
    merged = deepcopy(dict(session))
    for name, value in given.items():
        if name in _SECTIONS:
            if not isinstance(value, dict | None):
                raise invalid(f"session.{name}", f"is {shown(value)}; accepted: an object")
            merged[name] |= value or {}
        elif name in merged:
            merged[name] = value
    return merged


def raw_format(session: Mapping[str, Any]) -> RawFormat:
    """The format of the audio; `none` leaves it to a WAV header, if there is one."""
    audio = read_fields(RivaAudio, session, "session")
    params = audio.input_audio_params
    return RawFormat(_CODINGS[audio.input_audio_format], params.sample_rate_hz or 16_000, params.num_channels or 1)


def recognition_config(session: Mapping[str, Any]) -> riva.RecognitionConfig:
    """The same request in Riva's gRPC protocol, which `riva.request_mapping` checks and maps."""
    transcription, options = session["input_audio_transcription"], session["recognition_config"]
    boosting, diarization = session["word_boosting"], session["speaker_diarization"]
    contexts = boosting.get("word_boosting_list") if boosting.get("enable_word_boosting") else None
    fields = {
        "model": transcription.get("model"),
        "language_code": transcription.get("language"),
        "max_alternatives": options.get("max_alternatives"),
        "profanity_filter": options.get("enable_profanity_filter"),
        "verbatim_transcripts": options.get("enable_verbatim_transcripts"),
        "enable_automatic_punctuation": options.get("enable_automatic_punctuation"),
        "enable_word_time_offsets": options.get("enable_word_time_offsets"),
        "custom_configuration": _pairs(options.get("custom_configuration")),
        "diarization_config": {
            name: diarization.get(name) for name, default in _DIARIZATION.items() if diarization.get(name) != default
        },
        "speech_contexts": contexts,
        "endpointing_config": {name: value for name, value in session["endpointing_config"].items() if value},
    }
    try:
        config: riva.RecognitionConfig = json_format.ParseDict(fields, riva.RecognitionConfig())
    except json_format.ParseError as error:
        raise invalid("session", f"has a wrong field: {str(error)[:200]}") from None
    return config


def _pairs(text: object) -> dict[str, str]:
    """`key:value,key:value`, as Riva's client writes it."""
    if text is None or isinstance(text, Mapping):
        return dict(text or {})
    path = "session.recognition_config.custom_configuration"
    if not isinstance(text, str):
        raise invalid(path, f"is {shown(text)}; accepted: 'key:value,key:value'")
    pairs = [pair.partition(":") for pair in text.replace(" ", "").split(",") if pair]
    if not all(separator for _, separator, _ in pairs):
        raise invalid(path, f"is {shown(text)}; accepted: 'key:value,key:value'")
    return {key: value for key, _, value in pairs}


class RuntimeConfig(Fields):
    """Fields of an append."""

    runtime_config: dict[str, Any] | None = None


class RivaDialect(Dialect):
    """One connection."""

    accepted = "transcription_session.update, input_audio_buffer.append, .commit, .clear and .done"

    def __init__(self, streams: ReplicaStreams, config: Config, given: Mapping[str, Any], model: str = ""):
        """`given`: settings of the client's secret; `model`: where they have none. GatewayError names a wrong one."""
        super().__init__(streams, config)
        self._handlers = {
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
            "input_audio_buffer.done": self._done,
            "transcription_session.update": self._update,
        }
        self._session = merge(default_session(streams.group(model), config.language), given)
        self._is_configured = False
        self._runtime: dict[str, str] = {}
        """Options that `runtime_config` has changed, until the next update of the session."""
        self._is_done = False
        self._text = ""  # the last delta
        self._item, self._previous = new_name("msg"), new_name("msg")

    def opened(self) -> list[Action]:
        """The first event of a connection whose handshake has a token of this dialect."""
        conversation = {"id": new_name("conv"), "object": "realtime.conversation"}
        return [self._event("conversation.created", conversation=conversation)]

    def receive(self, event: Mapping[str, Any]) -> Sequence[Action]:
        """Actions of a client event. GatewayError for a wrong one, which then has no effect."""
        if self._is_done:
            raise invalid("type", f"is {shown(event.get('type'))} after input_audio_buffer.done; accepted: nothing")
        return super().receive(event)

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
        return [] if error.code.is_passing else [self.rejected(error, None)]

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
        with self._rejected.updating(self._is_configured):
            given = read_fields(SessionUpdate, event, "").session or {}
            session = merge(self._session, given)
            unknown = [name for name in given if name not in (*session, *_OWN)]
            if unknown and self._config.strict:
                raise invalid(f"session.{unknown[0]}", NO_EFFECT)
            configured, ignored = self._configuration(session, {})
        if any(name.startswith("language ") for name in ignored):
            session["input_audio_transcription"]["language"] = self._config.language
        self._session = session
        ignored = [*unknown, *ignored]
        named = {"penstock_ignored": shown_names(ignored)} if ignored else {}
        return [configured, self._event("transcription_session.updated", session=session, **named)]

    def _configuration(self, session: Mapping[str, Any], runtime: dict[str, str]) -> tuple[Configure, Sequence[str]]:
        configured = configure(session, self._streams, self._config, runtime)
        self._is_configured, self._runtime = True, runtime
        return configured

    def _append(self, event: Mapping[str, Any]) -> Sequence[Action]:
        self._rejected.check()
        data = read_audio(event)
        given = read_fields(RuntimeConfig, event, "").runtime_config or {} if "runtime_config" in event else {}
        runtime = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
        is_end = is_forced_end(runtime)
        actions: list[Action] = [] if self._is_configured else [self._configuration(self._session, {})[0]]
        actions.append(AppendAudio(data))
        if changes := {key: value for key, value in runtime.items() if key != FORCE_EOU}:
            actions.append(self._configuration(self._session, self._runtime | changes)[0])
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
        self._previous, self._item = self._item, new_name("msg")
        return completed


def configure(
    session: Mapping[str, Any],
    streams: ReplicaStreams,
    config: Config,
    runtime: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Configure, Sequence[str]]:
    """Stream options of a session, and the names of fields without an effect. GatewayError names a wrong field.

    runtime: changes by `runtime_config`.
    """
    recognition = changed(recognition_config(session), runtime)
    group = streams.group(recognition.model)
    group.check_live()
    request = map_request(recognition, group, config)
    streams.check(request.options)
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
