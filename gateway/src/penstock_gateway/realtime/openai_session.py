"""OpenAI's transcription session: its fields, the stream options that follow, and how it is shown to the client."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock_client.pcm import RawEncoding, RawFormat
from penstock_gateway.config import MAX_SILENCE_MS, MIN_SILENCE_MS, Config
from penstock_gateway.errors import shown
from penstock_gateway.openai_words import KEYWORD_NATS
from penstock_gateway.realtime.fields import check_names, invalid, read, read_texts
from penstock_gateway.stream.languages import choose_language, shown_language
from penstock_gateway.stream.live_stream import ModelGroup, StreamOptions, Streams

RATES_HZ = (24_000, 16_000, 8_000)
"""OpenAI's rate of audio/pcm, and two more."""
_CODINGS: Mapping[str, RawEncoding] = {"audio/pcm": "s16le", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}
_G711_RATE_HZ = 8_000
_DELAYS = ("minimal", "low", "medium", "high", "xhigh")
_EAGERNESS_MS = {"high": 500, "medium": 800, "auto": 800, "low": 1200}
DEFAULT_SILENCE_MS = 800
"""Of server_vad in a gateway whose segments do not end in pauses by default."""
_IGNORED_DETECTION = ("threshold", "prefix_padding_ms", "idle_timeout_ms", "create_response", "interrupt_response")
"""OpenAI's fields of `turn_detection` without an effect."""
LOGPROBS = "item.input_audio_transcription.logprobs"
INTERIM = "item.input_audio_transcription.interim"
WORDS = "item.input_audio_transcription.words"
_INCLUDE = (LOGPROBS, INTERIM, WORDS)


@dataclass(frozen=True, slots=True)
class OpenAISession:
    """The settings of a session. `update` gives those after a client's `session.update`."""

    silence_ms: int | None
    """Pause that ends an item; None: only a commit does (`turn_detection: null`)."""
    format: str = "audio/pcm"
    rate_hz: int = RATES_HZ[0]
    model: str = ""
    language: str | None = None
    keywords: tuple[str, ...] = ()
    delay: str | None = None
    include: tuple[str, ...] = ()

    def update(self, session: Mapping[str, Any], config: Config) -> "OpenAISession":
        """Takes the fields that `session` has; the others stay. GatewayError names a wrong field."""
        if (kind := session.get("type", "transcription")) != "transcription":
            raise invalid("session.type", f"is {shown(kind)}; accepted: 'transcription'")
        check_names(session, ("type", "audio", "include", "id", "object", "expires_at"), "session")
        audio = read(session, "audio", dict, "session", {})
        check_names(audio, ("input",), "session.audio")
        given = read(audio, "input", dict, "session.audio", {})
        path = "session.audio.input"
        check_names(given, ("format", "transcription", "turn_detection", "noise_reduction"), path)
        if config.strict:
            _check_no_ignored(given, path)
        changed = self._with_format(read(given, "format", dict, path), f"{path}.format")
        changed = changed._with_transcription(read(given, "transcription", dict, path), f"{path}.transcription")
        if "turn_detection" in given:
            detection = read(given, "turn_detection", dict, path)
            default_ms = config.endpoint_silence_ms or DEFAULT_SILENCE_MS
            changed = replace(changed, silence_ms=_silence_ms(detection, default_ms, f"{path}.turn_detection"))
        if "include" in session:
            include = read_texts(session, "include", "session")
            for index, name in enumerate(include):
                if name not in _INCLUDE:
                    raise invalid(f"session.include[{index}]", f"is {shown(name)}; accepted: {', '.join(_INCLUDE)}")
            changed = replace(changed, include=include)
        return changed

    def _with_format(self, given: Mapping[str, Any] | None, path: str) -> "OpenAISession":
        if given is None:
            return self
        check_names(given, ("type", "rate"), path)
        kind = read(given, "type", str, path, "audio/pcm")
        if kind not in _CODINGS:
            raise invalid(f"{path}.type", f"is {shown(kind)}; accepted: {', '.join(_CODINGS)}")
        rates = RATES_HZ if kind == "audio/pcm" else (_G711_RATE_HZ,)
        rate = read(given, "rate", int, path, rates[0])
        if rate not in rates:
            raise invalid(f"{path}.rate", f"is {shown(rate)}; accepted: {', '.join(map(str, rates))}")
        return replace(self, format=kind, rate_hz=rate)

    def _with_transcription(self, given: Mapping[str, Any] | None, path: str) -> "OpenAISession":
        if given is None:
            return self
        check_names(given, ("model", "language", "languages", "keywords", "delay", "prompt"), path)
        changed = self
        if "model" in given:
            changed = replace(changed, model=read(given, "model", str, path, ""))
        if "language" in given or "languages" in given:
            languages = read_texts(given, "languages", path)
            changed = replace(changed, language=read(given, "language", str, path) or (languages or (None,))[0])
        if "keywords" in given:
            changed = replace(changed, keywords=read_texts(given, "keywords", path))
        if "delay" in given:
            delay = read(given, "delay", str, path)
            if delay not in (None, *_DELAYS):
                raise invalid(f"{path}.delay", f"is {shown(delay)}; accepted: {', '.join(_DELAYS)}")
            changed = replace(changed, delay=delay)
        return changed

    def group(self, streams: Streams) -> ModelGroup:
        """The model of the session: that of its name, of the context nearest to `delay` among those of its checkpoint.

        GatewayError: MODEL_NOT_FOUND, NO_REPLICA.
        """
        named = streams.group(self.model)
        if self.delay is None:
            return named
        alike = sorted((group for group in streams.groups if group.model == named.model), key=lambda g: g.chunk_ms)
        return alike[round(_DELAYS.index(self.delay) / (len(_DELAYS) - 1) * (len(alike) - 1))] if alike else named

    def options(self, streams: Streams, only_language: str) -> StreamOptions:
        """The options of a stream; `only_language` is that of a model without a choice. GatewayError as `group`."""
        group = self.group(streams)
        path = "session.audio.input.transcription"
        if len(self.keywords) > group.max_boosted_phrases:
            raise invalid(
                f"{path}.keywords", f"has {len(self.keywords)} phrases; accepted: {group.max_boosted_phrases}"
            )
        return StreamOptions(
            model=group.name,
            language=choose_language(self.language, group, only_language, f"{path}.language"),
            phrases=tuple((keyword, KEYWORD_NATS) for keyword in self.keywords),
            endpoint_silence_ms=self.silence_ms or 0,
        )

    @property
    def audio(self) -> RawFormat:
        """The format of the audio."""
        return RawFormat(_CODINGS[self.format], self.rate_hz, 1)

    def shown(self, streams: Streams, only_language: str) -> dict[str, Any]:
        """The session as the client sees it: what is really done. GatewayError as `group`."""
        group = self.group(streams)
        language = self.language or shown_language(group, None, only_language)
        form: dict[str, Any] = {"type": self.format}
        if self.format == "audio/pcm":
            form["rate"] = self.rate_hz
        transcription: dict[str, Any] = {"model": group.name, "language": language}
        if self.keywords:
            transcription["keywords"] = self.keywords
        if self.delay:
            transcription["delay"] = self.delay
        detection = None if self.silence_ms is None else {"type": "server_vad", "silence_duration_ms": self.silence_ms}
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {
                "input": {
                    "format": form,
                    "transcription": transcription,
                    "noise_reduction": None,
                    "turn_detection": detection,
                }
            },
            "include": self.include,
        }


def _check_no_ignored(given: Mapping[str, Any], path: str) -> None:
    """GatewayError for a field that is set and has no effect (`--strict`)."""
    detection = given.get("turn_detection")
    is_semantic = isinstance(detection, Mapping) and detection.get("type") == "semantic_vad"
    other = "silence_duration_ms" if is_semantic else "eagerness"
    for at, names, full in (
        (given, ("noise_reduction",), path),
        (given.get("transcription"), ("prompt",), f"{path}.transcription"),
        (detection, (*_IGNORED_DETECTION, other), f"{path}.turn_detection"),
    ):
        for name in names:
            if isinstance(at, Mapping) and at.get(name):
                raise invalid(f"{full}.{name}", "has no effect, and this gateway is strict; accepted: null")


def _silence_ms(detection: Mapping[str, Any] | None, default_ms: int, path: str) -> int | None:
    """The pause that ends an item: that of server_vad, or that of semantic_vad's eagerness; None without detection."""
    if detection is None:
        return None
    check_names(detection, ("type", "silence_duration_ms", "eagerness", *_IGNORED_DETECTION), path)
    kind = read(detection, "type", str, path, "server_vad")
    if kind == "semantic_vad":
        eagerness = read(detection, "eagerness", str, path, "auto")
        if eagerness not in _EAGERNESS_MS:
            raise invalid(f"{path}.eagerness", f"is {shown(eagerness)}; accepted: {', '.join(_EAGERNESS_MS)}")
        return _EAGERNESS_MS[eagerness]
    if kind != "server_vad":
        raise invalid(f"{path}.type", f"is {shown(kind)}; accepted: server_vad, semantic_vad")
    silence_ms = read(detection, "silence_duration_ms", int, path, default_ms)
    if silence_ms <= 0:
        raise invalid(f"{path}.silence_duration_ms", f"is {silence_ms}; accepted: integers above 0")
    return int(min(max(silence_ms, MIN_SILENCE_MS), MAX_SILENCE_MS))  # `session.updated` shows it
