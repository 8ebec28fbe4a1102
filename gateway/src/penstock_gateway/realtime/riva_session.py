"""The session of Riva's Realtime dialect: its JSON, and Riva's `RecognitionConfig` that it stands for."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal

from google.protobuf import json_format

from penstock_client.audio.pcm import RawEncoding, RawFormat
from penstock_gateway.errors import shown
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.request_mapping import MAX_RATE_HZ, MIN_RATE_HZ
from penstock_gateway.security.limits import MAX_CHANNELS
from penstock_gateway.stream.languages import shown_language
from penstock_gateway.stream.live_stream import ModelGroup
from penstock_gateway.validation import Fields, between, invalid, read_fields

WITH_HEADER = "none"
_CODINGS: Mapping[str, RawEncoding] = {
    "pcm16": "s16le",
    WITH_HEADER: "s16le",
    "g711_ulaw": "mulaw",
    "g711_alaw": "alaw",
}
_SECTIONS = (
    "input_audio_transcription", "input_audio_params", "recognition_config", "speaker_diarization", "word_boosting",
    "endpointing_config",
)  # fmt: skip

_DIARIZATION = {"enable_speaker_diarization": False, "max_speaker_count": 8}
"""As Riva's client sends it where it asks for nothing."""
ONLY_RIVA = (
    "input_audio_params", "recognition_config", "speaker_diarization", "word_boosting", "endpointing_config",
)  # fmt: skip
"""Fields that a session of OpenAI's never has."""


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
