"""OpenAI's transcription session: its fields, the stream options that follow, and how it is shown to the client."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ValidationInfo, field_validator

from penstock_common.audio.pcm import RawEncoding, RawFormat
from penstock_common.options import Numbers
from penstock_gateway.config import Config
from penstock_gateway.http.openai_objects import KEYWORD_NATS
from penstock_gateway.realtime.dialect import retired
from penstock_gateway.stream.options import (
    LiveStreamOptions,
    ModelGroup,
    choose_language,
    choose_numbers,
    limited_silence_ms,
    shown_language,
    unused_language,
    unused_model,
)
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import (
    NO_EFFECT,
    Array,
    ClosedFields,
    Text,
    accepted,
    invalid,
    read_known,
    read_speakers,
)

RATES_HZ = (24_000, 16_000, 8_000)
"""OpenAI's rate of audio/pcm, and two more."""
_G711_RATES_HZ = (8_000,)
_CODINGS: Mapping[str, RawEncoding] = {"audio/pcm": "s16le", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}
_DELAYS = ("minimal", "low", "medium", "high", "xhigh")
_EAGERNESS_MS = {"high": 500, "medium": 800, "auto": 800, "low": 1200}
DEFAULT_SILENCE_MS = 800
"""The pause of server_vad in a gateway whose segments do not end in pauses by default."""
Detail = Literal[
    "item.input_audio_transcription.logprobs",
    "item.input_audio_transcription.interim",
    "item.input_audio_transcription.words",
]
"""Values of `include`."""
LOGPROBS, INTERIM, WORDS = get_args(Detail)


class Format(ClosedFields):
    """The format of the audio."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] | None = None
    rate: int | None = None

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int | None, info: ValidationInfo) -> int | None:
        rates = RATES_HZ if info.data.get("type") in (None, "audio/pcm") else _G711_RATES_HZ
        if rate not in (None, *rates):
            raise accepted(", ".join(map(str, rates)))
        return rate

    @property
    def raw(self) -> RawFormat:
        """The same without its defaults."""
        kind = self.type or "audio/pcm"
        return RawFormat(_CODINGS[kind], self.rate or (RATES_HZ[0] if kind == "audio/pcm" else _G711_RATES_HZ[0]), 1)

    def shown(self) -> dict[str, Any]:
        """The format as the client sees it."""
        kind = self.type or "audio/pcm"
        return {"type": kind, "rate": self.raw.sample_rate_hz} if kind == "audio/pcm" else {"type": kind}


class SessionTranscription(ClosedFields):
    """Model, language and boosted phrases."""

    without_effect = frozenset(("prompt",))
    model: str | None = None
    language: str | None = None
    languages: Array[Text] | None = None
    keywords: Array[Text] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    speakers: Any = None
    numbers: Numbers | None = None
    mask_words: bool | None = None

    @field_validator("speakers")
    @classmethod
    def _check_speakers(cls, speakers: Any) -> str | int | None:
        return None if speakers is None else read_speakers(speakers)

    @property
    def asked_speakers(self) -> str | int | None:
        """The option of the stream."""
        asked: str | int | None = self.speakers
        return None if asked == "off" else asked


class TurnDetection(ClosedFields):
    """The pause that ends an item."""

    without_effect = frozenset(
        ("threshold", "prefix_padding_ms", "idle_timeout_ms", "create_response", "interrupt_response")
    )
    type: Literal["server_vad", "semantic_vad"] | None = None
    silence_duration_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] | None = None

    @field_validator("silence_duration_ms", "eagerness")
    @classmethod
    def _check_effect(cls, value: Any, info: ValidationInfo) -> Any:
        is_of_semantic_vad = info.field_name == "eagerness"
        if value and is_of_semantic_vad != (info.data.get("type") == "semantic_vad"):
            raise accepted("null with this type")
        if value is not None and not is_of_semantic_vad and value <= 0:
            raise accepted("integers above 0")
        return value

    def silence_ms(self, default_ms: int) -> int:
        """Silence of server_vad, or of semantic_vad's eagerness."""
        if self.type == "semantic_vad":
            return _EAGERNESS_MS[self.eagerness or "auto"]
        return limited_silence_ms(self.silence_duration_ms or default_ms)

    def limited(self) -> list[str]:
        """The name of a silence that is not taken as it was given; `session.updated` shows the one that is."""
        is_taken = (
            self.silence_duration_ms is None or limited_silence_ms(self.silence_duration_ms) == self.silence_duration_ms
        )
        return [] if is_taken else ["session.audio.input.turn_detection.silence_duration_ms"]


class SessionAudioInput(ClosedFields):
    """`session.audio.input`."""

    without_effect = frozenset(("noise_reduction",))
    format: Format | None = None
    transcription: SessionTranscription | None = None
    turn_detection: TurnDetection | None = None


class SessionAudio(ClosedFields):
    """`session.audio`."""

    input: SessionAudioInput | None = None


class SessionFields(ClosedFields):
    """Fields of a client's session."""

    type: Literal["transcription"] = "transcription"
    audio: SessionAudio | None = None
    include: Array[Detail] | None = None
    id: Any = None
    object: Any = None
    expires_at: Any = None


class SessionModel(NamedTuple):
    """The model of a session."""

    named: ModelGroup
    """The model of its name."""
    group: ModelGroup
    """The same checkpoint in the context of its `delay`."""
    has_contexts: bool
    """True if `delay` has a choice."""


_FORMS = frozenset(("format", "rate", "encoding", "channel", "channels"))
"""Parts of the names of fields that say how audio is read."""
_COUNTING = frozenset(("format", "keywords", "language", "languages", "mask_words", "model", "numbers", "speakers"))
_BETA_FIELDS = {
    "input_audio_format": "format", "input_audio_transcription": "transcription", "turn_detection": "turn_detection",
    "input_audio_noise_reduction": "noise_reduction",
}  # fmt: skip
"""Fields of a session of OpenAI's beta, and their names in `audio.input`."""


def _counts(place: Sequence[int | str]) -> bool:
    """True for the path of a field that changes the words: a wrong value is rejected."""
    is_section = place[-1] in ("audio", "input", "transcription")
    is_form = not _FORMS.isdisjoint(re.sub("(?<=[a-z])(?=[A-Z])", "_", str(place[-1])).lower().split("_"))
    return is_section or is_form or place[0] == "type" or not _COUNTING.isdisjoint(place)


@dataclass(frozen=True, slots=True)
class OpenAISession:
    """The settings of a session. `update` gives those after a client's `session.update`."""

    silence_ms: int | None
    """Pause that ends an item; None: only a commit does (`turn_detection: null`)."""
    transcription: SessionTranscription = field(default_factory=SessionTranscription)
    format: Format = field(default_factory=Format)
    include: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Names of the last update's fields without an effect."""

    def update(self, session: Mapping[str, Any], config: Config) -> "OpenAISession":
        """Takes the fields that `session` has; the others stay. GatewayError names a wrong field that changes words."""
        for name, current in _BETA_FIELDS.items():
            if name in session:
                raise retired(f"session.{name}", "OpenAI's beta", f"session.audio.input.{current}")
        fields, ignored = read_known(SessionFields, session, "session", _counts, config.strict)
        audio = (fields.audio and fields.audio.input) or SessionAudioInput()
        ignored += audio.turn_detection.limited() if audio.turn_detection else []
        changed: dict[str, Any] = {"ignored": tuple(dict.fromkeys(ignored))}
        if audio.format is not None:
            changed["format"] = audio.format
        if audio.transcription is not None:
            given = audio.transcription.model_dump(exclude_unset=True)
            if given.keys() & {"language", "languages"}:
                given = {"language": None, "languages": None} | given
            changed["transcription"] = self.transcription.model_copy(update=given)
        if "turn_detection" in audio.model_fields_set:
            detection, default_ms = audio.turn_detection, config.endpoint_silence_ms or DEFAULT_SILENCE_MS
            changed["silence_ms"] = None if detection is None else detection.silence_ms(default_ms)
        if "include" in fields.model_fields_set:
            changed["include"] = tuple(fields.include or ())
        return replace(self, **changed)

    @property
    def _language(self) -> str | None:
        """The first one that the client named."""
        return self.transcription.language or next(iter(self.transcription.languages or ()), None)

    def model(self, streams: ReplicaStreams) -> SessionModel:
        """The model of its name, in the context nearest to `delay` among those of its checkpoint.

        GatewayError: MODEL_NOT_FOUND, NO_REPLICA.
        """
        named, delay = streams.group(self.transcription.model or ""), self.transcription.delay
        alike = sorted((group for group in streams.groups if group.model == named.model), key=lambda g: g.chunk_ms)
        if delay is None or not alike:
            return SessionModel(named, named, len(alike) > 1)
        group = alike[round(_DELAYS.index(delay) / (len(_DELAYS) - 1) * (len(alike) - 1))]
        return SessionModel(named, group, len(alike) > 1)

    def options(self, model: SessionModel, config: Config) -> LiveStreamOptions:
        """The options of a stream. GatewayError FILES_ONLY, or names a wrong field."""
        group = model.group
        keywords = self.transcription.keywords or ()
        group.check_live()
        path = "session.audio.input.transcription"
        if len(keywords) > group.max_boosted_phrases:
            raise invalid(f"{path}.keywords", f"has {len(keywords)} phrases; accepted: {group.max_boosted_phrases}")
        for value in self._unused_values(model, config) if config.strict else ():
            raise invalid(f"{path}.{value.partition(' ')[0]}", NO_EFFECT)
        language = choose_language(self._language, group, f"{path}.language")
        shown_as = shown_language(group, self._language, config.language)
        return LiveStreamOptions(
            model=group.name,
            language=language,
            phrases=tuple((keyword, KEYWORD_NATS) for keyword in keywords),
            endpoint_silence_ms=self.silence_ms or 0,
            speakers=self.transcription.asked_speakers,
            masks=shown_as if self.transcription.mask_words else None,
            numbers=choose_numbers(self.transcription.numbers, group, language, shown_as, f"{path}.numbers"),
        )

    def _unused_values(self, model: SessionModel, config: Config) -> list[str]:
        delay = self.transcription.delay
        unused_delay = [] if delay is None or model.has_contexts else [f"delay {delay!r}"]
        unused_masks = ["mask_words"] if self.transcription.mask_words and config.mask_words is None else []
        return [*unused_language(self._language, model.group, config.language), *unused_delay, *unused_masks]

    def unused(self, model: SessionModel, config: Config) -> list[str]:
        """Fields and values of the last update that have no effect, and what of the session its model cannot use."""
        keywords = [f"keywords {text!r}" for text in model.group.unwritable(self.transcription.keywords or ())]
        named = unused_model(self.transcription.model or "", model.named)
        return [*named, *self.ignored, *self._unused_values(model, config), *keywords]

    def shown(self, model: SessionModel, config: Config) -> dict[str, Any]:
        """The session as the client sees it: what is really done."""
        group, language = model.group, self._language
        if language is None or unused_language(language, group, config.language):
            language = shown_language(group, None, config.language)
        transcription = {"model": group.name, "language": language}
        keywords = self.transcription.keywords or ()
        unwritable = frozenset(group.unwritable(keywords))
        boosted = [keyword for keyword in keywords if keyword not in unwritable]
        optional = {
            "keywords": boosted,
            "delay": self.transcription.delay if model.has_contexts else None,
            "speakers": self.transcription.asked_speakers,
            "numbers": self.transcription.numbers,
            "mask_words": self.transcription.mask_words and config.mask_words is not None,
        }
        detection = None if self.silence_ms is None else {"type": "server_vad", "silence_duration_ms": self.silence_ms}
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {
                "input": {
                    "format": self.format.shown(),
                    "transcription": transcription | {name: value for name, value in optional.items() if value},
                    "noise_reduction": None,
                    "turn_detection": detection,
                }
            },
            "include": self.include,
        }
