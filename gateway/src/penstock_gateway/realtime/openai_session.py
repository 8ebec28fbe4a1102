"""OpenAI's transcription session: its fields, the stream options that follow, and how it is shown to the client."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
    Array,
    ClosedFields,
    Ignored,
    Text,
    accepted,
    check_effect,
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
LOGPROBS: Literal["item.input_audio_transcription.logprobs"] = "item.input_audio_transcription.logprobs"
INTERIM: Literal["item.input_audio_transcription.interim"] = "item.input_audio_transcription.interim"
WORDS: Literal["item.input_audio_transcription.words"] = "item.input_audio_transcription.words"


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

    model: str | None = None
    language: str | None = None
    languages: Array[Text] | None = None
    keywords: Array[Text] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    speakers: Any = None
    numbers: Numbers | None = None
    mask_words: bool | None = None
    prompt: Ignored = None

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

    type: Literal["server_vad", "semantic_vad"] | None = None
    silence_duration_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    threshold: Ignored = None
    prefix_padding_ms: Ignored = None
    idle_timeout_ms: Ignored = None
    create_response: Ignored = None
    interrupt_response: Ignored = None

    @field_validator("silence_duration_ms", "eagerness")
    @classmethod
    def _check_effect(cls, value: Any, info: ValidationInfo) -> Any:
        is_of_semantic_vad = info.field_name == "eagerness"
        if value and is_of_semantic_vad != (info.data.get("type") == "semantic_vad"):
            check_effect(info)
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

    format: Format | None = None
    transcription: SessionTranscription | None = None
    turn_detection: TurnDetection | None = None
    noise_reduction: Ignored = None


class SessionAudio(ClosedFields):
    """`session.audio`."""

    input: SessionAudioInput | None = None


class SessionFields(ClosedFields):
    """Fields of a client's session."""

    type: Literal["transcription"] = "transcription"
    audio: SessionAudio | None = None
    include: (
        Array[
            Literal[
                "item.input_audio_transcription.logprobs",
                "item.input_audio_transcription.interim",
                "item.input_audio_transcription.words",
            ]
        ]
        | None
    ) = None
    id: Any = None
    object: Any = None
    expires_at: Any = None


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
        if audio.transcription is not None and audio.transcription.mask_words and config.mask_words is None:
            path = "session.audio.input.transcription.mask_words"
            if config.strict:
                raise invalid(path, "has no effect, and this gateway is strict; accepted: null")
            ignored.append(path)
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

    def group(self, streams: ReplicaStreams) -> ModelGroup:
        """The model of the session: that of its name, of the context nearest to `delay` among those of its checkpoint.

        GatewayError: MODEL_NOT_FOUND, NO_REPLICA.
        """
        named, delay = streams.group(self.transcription.model or ""), self.transcription.delay
        if delay is None:
            return named
        alike = sorted((group for group in streams.groups if group.model == named.model), key=lambda g: g.chunk_ms)
        return alike[round(_DELAYS.index(delay) / (len(_DELAYS) - 1) * (len(alike) - 1))] if alike else named

    def options(self, group: ModelGroup, only_language: str) -> LiveStreamOptions:
        """The options of a stream of `group`; `only_language` is that of a model without a choice.

        GatewayError FILES_ONLY, or names a wrong field.
        """
        keywords = self.transcription.keywords or ()
        group.check_live()
        path = "session.audio.input.transcription"
        if len(keywords) > group.max_boosted_phrases:
            raise invalid(f"{path}.keywords", f"has {len(keywords)} phrases; accepted: {group.max_boosted_phrases}")
        language = choose_language(self._language, group, f"{path}.language")
        shown_as = shown_language(group, self._language, only_language)
        return LiveStreamOptions(
            model=group.name,
            language=language,
            phrases=tuple((keyword, KEYWORD_NATS) for keyword in keywords),
            endpoint_silence_ms=self.silence_ms or 0,
            speakers=self.transcription.asked_speakers,
            masks=shown_as if self.transcription.mask_words else None,
            numbers=choose_numbers(self.transcription.numbers, group, language, shown_as, f"{path}.numbers"),
        )

    def unused(self, group: ModelGroup, only_language: str) -> list[str]:
        """Fields and values of the last update that have no effect, and what of the session `group` cannot use."""
        keywords = [f"keywords {text!r}" for text in group.unwritable(self.transcription.keywords or ())]
        named = unused_model(self.transcription.model or "", group)
        return [*named, *self.ignored, *unused_language(self._language, group, only_language), *keywords]

    def shown(self, group: ModelGroup, only_language: str) -> dict[str, Any]:
        """The session as the client sees it: what is really done."""
        transcription = {"model": group.name, "language": self._language or shown_language(group, None, only_language)}
        keywords = self.transcription.keywords or ()
        unwritable = frozenset(group.unwritable(keywords))
        boosted = [keyword for keyword in keywords if keyword not in unwritable]
        optional = {
            "keywords": boosted,
            "delay": self.transcription.delay,
            "speakers": self.transcription.asked_speakers,
            "numbers": self.transcription.numbers,
            "mask_words": self.transcription.mask_words,
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
