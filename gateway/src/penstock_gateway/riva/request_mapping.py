"""Riva's `RecognitionConfig` -> the options of a stream and the form of its audio. Knows no sockets and no samples.

`FIELDS` is the table of docs/gateway.md: every field of the request and what happens to it.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from penstock_common.audio.pcm import RawEncoding, RawFormat
from penstock_common.errors import shown
from penstock_common.options import (
    CHANGEABLE,
    FIGURES,
    MAX_SILENCE_MS,
    MAX_SPEAKERS,
    MIN_SILENCE_MS,
    N_BEST_DECODERS,
    WORDS,
    StreamOptions,
)
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.limits import MAX_CHANNELS
from penstock_gateway.riva.audio_input import AudioForm
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.proto.riva_audio_pb2 import AudioEncoding
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
from penstock_gateway.validation import NO_EFFECT

DEFAULT_RATE_HZ, MIN_RATE_HZ, MAX_RATE_HZ = 16_000, 8000, 96_000
MAX_BOOST_NATS = 2.0
"""The bundled model repeats boosted words above 5 nats in greedy search, above 2 in beam search."""


@dataclass(frozen=True)
class ResultFormat:
    """Result options that a client asked for."""

    language: str
    """Empty where the server chooses."""
    max_alternatives: int
    has_words: bool


_NO_EFFECT = "no effect"
_PER_CHANNEL = "enable_separate_recognition_per_channel"
FIELDS = {
    "encoding": "all five; a header in the audio overrides it; unset: 16-bit PCM without one",
    "sample_rate_hertz": "8,000 to 96,000; 0: that of the header, else 16,000",
    "audio_channel_count": "up to 8, averaged; 0: that of the header, else 1",
    _PER_CHANNEL: "true: [each channel by itself](#channels), which needs `audio_channel_count`",
    "model": 'a model of the gateway; "": the default',
    "language_code": '"", `auto`, or a language of the model by code or name',
    "max_alternatives": "n > 1: `decoder=alsd`, `n_best=min(n, beam size)`; a segment may have fewer",
    "speech_contexts.phrases": "`boosted_phrases`",
    "speech_contexts.boost": "nats per token = 0.02 * boost (`--riva-boost-scale`), at most ±2",
    "enable_word_time_offsets": "words with times (ms) and confidence in final results",
    "endpointing_config.stop_history": f"`endpoint_silence_ms`, limited to {MIN_SILENCE_MS} to {MAX_SILENCE_MS:,}; "
    "unset, 0, -1: the gateway's",
    "endpointing_config.stop_history_eou": "the same; the smaller of both counts",
    "diarization_config": f"`speakers`: `max_speaker_count`, 2 to {MAX_SPEAKERS}, 0: any; words with `speaker_tag`, "
    "from 1, in finals; not enabled: no effect",
    "custom_configuration": "see below",
    "endpointing_config.start_history": _NO_EFFECT,
    "endpointing_config.start_threshold": _NO_EFFECT,
    "endpointing_config.stop_threshold": _NO_EFFECT,
    "endpointing_config.stop_threshold_eou": _NO_EFFECT,
    "verbatim_transcripts": "false: [numbers as figures](transcription.md#numbers), if the language has rules; "
    "true: as words",
    "enable_automatic_punctuation": _NO_EFFECT,
    "profanity_filter": "true: words of `--mask-words` are [masked](#masked-words); else no effect",
}
"""By the path after `config.`."""
_SILENCE_FIELDS = ("stop_history", "stop_history_eou")
_NOT_CUSTOM = ("n_best", "boosted_phrases", "boost", "language", "speakers")
"""Options of a stream with fields of their own."""
_OPTIONS = {
    option.name: option for option in StreamOptions.options() if option.name not in _NOT_CUSTOM
} | dict.fromkeys(_SILENCE_FIELDS, StreamOptions.option("endpoint_silence_ms"))
"""Keys of `custom_configuration`: options of a stream, and Riva's names of the silence that ends a segment."""
_SILENCE_OPTIONS = ("endpoint_silence_ms", *_SILENCE_FIELDS)
_IGNORED_KEYS = (
    "start_history", "start_threshold", "stop_threshold", "stop_threshold_eou", "enable_vad_endpointing",
    "filter_speech", "apply_partial_itn",
)  # fmt: skip
_IGNORED_PATTERN = re.compile(r"neural_vad\.[a-z_]{1,40}")
_RAW_ENCODINGS: Mapping[int, RawEncoding | None] = {
    AudioEncoding.ENCODING_UNSPECIFIED: "s16le", AudioEncoding.LINEAR_PCM: "s16le", AudioEncoding.MULAW: "mulaw",
    AudioEncoding.ALAW: "alaw", AudioEncoding.FLAC: None, AudioEncoding.OGGOPUS: None,
}  # fmt: skip
FORCE_EOU = "force_eou"
_RUNTIME_OPTIONS = (*(name for name in CHANGEABLE if name in _OPTIONS), *_SILENCE_FIELDS)
"""Keys of `runtime_config` that are those of `custom_configuration`."""


@dataclass(frozen=True)
class RecognitionRequest:
    """A checked configuration."""

    options: LiveStreamOptions
    audio: AudioForm
    results: ResultFormat
    ignored: tuple[str, ...]
    """Names of the fields that the client set and that have no effect, and of phrases that the model cannot write."""


def map_request(config: riva.RecognitionConfig, group: ModelGroup, settings: Config) -> RecognitionRequest:
    """Checks every field and maps it; GatewayError names the wrong one and what is accepted."""
    custom, ignored_keys = _custom_options(config.custom_configuration)
    ignored = [path for path, effect in FIELDS.items() if effect == _NO_EFFECT and _is_set(config, path)]
    ignored += ignored_keys + unused_model(config.model, group)
    ignored += unused_language(config.language_code, group, settings.language)
    silence_ms, limited = _silence_ms(config.endpointing_config, custom, settings.endpoint_silence_ms)
    ignored += limited
    speakers = _speakers(config.diarization_config)
    if speakers is None and config.diarization_config.max_speaker_count:
        ignored.append("diarization_config.max_speaker_count")
    if config.profanity_filter and settings.mask_words is None:
        ignored.append("profanity_filter")
    if settings.strict and ignored:
        name = ignored[0].partition(" ")[0]
        raise _invalid({"language": "language_code"}.get(name, name), NO_EFFECT)
    language = choose_language(config.language_code, group, "config.language_code")
    decoder, n_best = _search(config.max_alternatives, custom, group)
    is_open = group.languages and not language  # without a code the server chooses
    known_language = shown_language(group, config.language_code, settings.language)
    if (asked := custom.pop("numbers", None)) is not None:
        numbers = choose_numbers(asked, group, language, known_language, "config.custom_configuration.numbers")
    else:
        numbers = choose_numbers(WORDS if config.verbatim_transcripts else FIGURES, group, language, known_language)
    phrases = _phrases(config.speech_contexts, settings.riva_boost_scale)
    if not settings.strict:  # else the server rejects them
        ignored += [f"speech_contexts.phrases {text!a}" for text in group.unwritable(text for text, _ in phrases)]
    options = LiveStreamOptions(
        model=config.model,
        language=language,
        phrases=phrases,
        endpoint_silence_ms=silence_ms,
        decoder=decoder,
        n_best=n_best,
        speakers=speakers,
        numbers=numbers,
        masks=None if not config.profanity_filter else "" if is_open else known_language,
        extra=custom,
    )
    results = ResultFormat(
        language="" if is_open else known_language,
        max_alternatives=max(1, n_best),
        has_words=config.enable_word_time_offsets or speakers is not None,
    )
    return RecognitionRequest(options, _audio_form(config), results, tuple(ignored))


def _is_set(config: riva.RecognitionConfig, path: str) -> bool:
    """True for a field that a client sets. Riva's clients write -1 for the default."""
    *parents, name = path.split(".")
    holder: Any = getattr(config, parents[0]) if parents else config
    return any(field.name == name for field, _ in holder.ListFields()) and bool(getattr(holder, name) != -1)


def changed(config: riva.RecognitionConfig, runtime_config: Mapping[str, str]) -> riva.RecognitionConfig:
    """The configuration with the changes of a later message; GatewayError names a wrong key."""
    after = riva.RecognitionConfig()
    after.CopyFrom(config)
    for key, text in runtime_config.items():
        if key == "language_code":
            after.language_code = text
        elif key == "speech_contexts":
            try:
                given = json_format.Parse(f'{{"speech_contexts": {text or "[]"}}}', riva.RecognitionConfig())
            except json_format.ParseError:
                accepted = 'JSON as [{"phrases": ["word"], "boost": 20}]'
                raise _invalid(f"runtime_config.{key}", f"is {shown(text)}; accepted: {accepted}") from None
            after.ClearField("speech_contexts")
            after.speech_contexts.extend(given.speech_contexts)
        elif key in _RUNTIME_OPTIONS:
            after.custom_configuration[key] = text
        elif key != FORCE_EOU:
            accepted = ", ".join((FORCE_EOU, "speech_contexts", "language_code", *_RUNTIME_OPTIONS))
            raise _invalid("runtime_config", f"has {shown(key)}; accepted: {accepted}")
    return after


def is_forced_end(runtime_config: Mapping[str, str]) -> bool:
    """True if a message of a stream asks for a final result after its audio."""
    value = runtime_config.get(FORCE_EOU, "")
    if value.lower() not in ("", "0", "1", "false", "true"):
        raise _invalid(f"runtime_config.{FORCE_EOU}", f"is {shown(value)}; accepted: true, 1, false, 0")
    return value.lower() in ("1", "true")


def _audio_form(config: riva.RecognitionConfig) -> AudioForm:
    if config.encoding not in _RAW_ENCODINGS:
        raise _invalid("encoding", f"is {config.encoding}; accepted: {', '.join(AudioEncoding.keys())}")
    rate = config.sample_rate_hertz
    if rate and not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        accepted = f"0 or {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        raise _invalid("sample_rate_hertz", f"is {rate}; accepted: {accepted}")
    if not 0 <= config.audio_channel_count <= MAX_CHANNELS:
        raise _invalid("audio_channel_count", f"is {config.audio_channel_count}; accepted: 0 to {MAX_CHANNELS}")
    channels = config.audio_channel_count if getattr(config, _PER_CHANNEL) else 0
    if getattr(config, _PER_CHANNEL) and not channels:
        raise _invalid("audio_channel_count", f"is 0; accepted: 1 to {MAX_CHANNELS}, with {_PER_CHANNEL}")
    raw = _RAW_ENCODINGS[config.encoding]
    if raw is None:
        return AudioForm(None, channels=channels)
    is_declared = config.encoding != AudioEncoding.ENCODING_UNSPECIFIED
    return AudioForm(RawFormat(raw, rate or DEFAULT_RATE_HZ, config.audio_channel_count or 1), is_declared, channels)


def _search(max_alternatives: int, custom: dict[str, Any], group: ModelGroup) -> tuple[str | None, int]:
    """Decoder and number of alternatives; alternatives need a beam search, so they choose one."""
    decoder = custom.pop("decoder", None)
    if decoder is not None and decoder not in group.decoders:
        raise _invalid("custom_configuration.decoder", f"is {shown(decoder)}; accepted: {', '.join(group.decoders)}")
    if max_alternatives < 0:
        raise _invalid("max_alternatives", f"is {max_alternatives}; accepted: 0 or more")
    if max_alternatives > 1 and decoder is None:
        decoder = next((name for name in N_BEST_DECODERS if name in group.decoders), None)
    if max_alternatives < 2 or decoder not in N_BEST_DECODERS:
        return decoder, 0
    beam_size = custom.get("beam_size", group.max_beam_size)
    return decoder, min(max_alternatives, max(1, int(beam_size)))


def _speakers(diarization: riva.SpeakerDiarizationConfig) -> int | str | None:
    if not diarization.enable_speaker_diarization:
        return None
    most = diarization.max_speaker_count
    if most and not 2 <= most <= MAX_SPEAKERS:
        accepted = f"0, or 2 to {MAX_SPEAKERS}, which is the model's limit"
        raise _invalid("diarization_config.max_speaker_count", f"is {most}; accepted: {accepted}")
    return int(most) or "on"


def _phrases(contexts: Iterable[riva.SpeechContext], boost_scale: float) -> tuple[tuple[str, float], ...]:
    """Boosted phrases with nats per token. A phrase of several contexts keeps its last boost."""
    phrases: dict[str, float] = {}
    for number, context in enumerate(contexts):
        if not math.isfinite(context.boost):
            raise _invalid(f"speech_contexts[{number}].boost", f"is {context.boost}; accepted: a finite number")
        nats = max(-MAX_BOOST_NATS, min(MAX_BOOST_NATS, boost_scale * context.boost))
        for phrase in context.phrases:
            if not phrase.strip():
                raise _invalid(f"speech_contexts[{number}].phrases", "has an empty phrase; accepted: words")
            if nats:
                phrases[phrase] = nats
    return tuple(phrases.items())


def _silence_ms(endpointing: riva.EndpointingConfig, custom: dict[str, Any], default_ms: int) -> tuple[int, list[str]]:
    """The shortest of the silences that the request names, else the default; and the names of those beyond a limit.

    0 and -1 stand for the default.
    """
    named = {f"custom_configuration.{key}": custom.pop(key) for key in _SILENCE_OPTIONS if key in custom}
    for name in _SILENCE_FIELDS:
        if endpointing.HasField(name):
            named[f"endpointing_config.{name}"] = getattr(endpointing, name)
    given = {name: int(silence_ms) for name, silence_ms in named.items() if int(silence_ms) > 0}
    used = {name: limited_silence_ms(silence_ms) for name, silence_ms in given.items()}
    return min(used.values(), default=default_ms), [
        name for name, silence_ms in given.items() if silence_ms != used[name]
    ]


def _custom_options(configuration: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The options of a stream in `custom_configuration`, and the names of the keys without an effect."""
    options: dict[str, Any] = {}
    ignored: list[str] = []
    for key, text in sorted(configuration.items()):
        name = f"custom_configuration.{key}"
        if key in _IGNORED_KEYS or _IGNORED_PATTERN.fullmatch(key):
            ignored.append(name)
            continue
        if key not in _OPTIONS:
            accepted = ", ".join((*_OPTIONS, *_IGNORED_KEYS, "neural_vad.*"))
            message = f"custom_configuration has {shown(key)}; accepted: {accepted}"
            raise GatewayError(GatewayCode.FIELD_INVALID, message, "config.custom_configuration")
        try:
            options[key] = _integer(text) if key in _SILENCE_FIELDS else _OPTIONS[key].parse(text)
        except ValueError as error:
            raise _invalid(name, f"is {shown(text)}; {error}") from None
    return options, ignored


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("accepted: integers") from None


def _invalid(name: str, problem: str) -> GatewayError:
    path = name if name.startswith("runtime_config") else f"config.{name}"
    return GatewayError(GatewayCode.FIELD_INVALID, f"{path} {problem}", path)
