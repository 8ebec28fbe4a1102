"""The fields of a transcription request and what each becomes. `FIELDS` is also the table in docs/gateway.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock_gateway.config import MAX_SILENCE_MS, MIN_SILENCE_MS, Config
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.json_text import parse_object
from penstock_gateway.openai_words import KEYWORD_NATS
from penstock_gateway.stream.languages import choose_language, shown_language
from penstock_gateway.stream.live_stream import ModelGroup, StreamOptions, Streams

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = ("segment", "word")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """What a client asks for, without the file."""

    group: ModelGroup
    options: StreamOptions
    language: str
    """For the reply."""
    response_format: str = "json"
    is_streamed: bool = False
    has_logprobs: bool = False
    granularities: Sequence[str] = ("segment",)
    ignored: Sequence[str] = ()
    """Fields without an effect."""


class _Draft(NamedTuple):
    """What the fields so far became, and the gateway's default language."""

    request: TranscriptionRequest
    default_language: str


_Read = Callable[[_Draft, list[str]], TranscriptionRequest]


class Field(NamedTuple):
    """One field of the form."""

    name: str
    effect: str
    """For the documentation."""
    read: _Read | None = None
    """What its values make of the request; None where something else reads it."""


def _invalid(name: str, value: str, accepted: str) -> GatewayError:
    return GatewayError(ErrorCode.FIELD_INVALID, f"{name} is {value[:60]!r}; accepted: {accepted}", name)


def _with_options(draft: _Draft, **options: Any) -> TranscriptionRequest:
    return replace(draft.request, options=replace(draft.request.options, **options))


def _language(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    group, default = draft.request.group, draft.default_language
    chosen = [choose_language(code, group, default, "language") for code in values if code]
    option = chosen[0] if len(chosen) == 1 else draft.request.options.language
    return replace(_with_options(draft, language=option), language=shown_language(group, option, default))


def _keywords(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    return _with_options(draft, phrases=tuple((text.strip(), KEYWORD_NATS) for text in values if text.strip()))


def _response_format(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    if values[-1] not in FORMATS:
        raise _invalid("response_format", values[-1], ", ".join(FORMATS))
    return replace(draft.request, response_format=values[-1])


def _stream(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    if values[-1].lower() not in ("true", "false"):
        raise _invalid("stream", values[-1], "true, false")
    return replace(draft.request, is_streamed=values[-1].lower() == "true")


def _include(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    for value in values:
        if value != "logprobs":
            raise _invalid("include", value, "logprobs")
    return replace(draft.request, has_logprobs=True)


def _granularities(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    for value in values:
        if value not in GRANULARITIES:
            raise _invalid("timestamp_granularities", value, ", ".join(GRANULARITIES))
    return replace(draft.request, granularities=tuple(values))


def _chunking(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    if values[-1] in ("", "auto"):
        return draft.request
    strategy = parse_object(values[-1]) or {}
    silence_ms = strategy.get("silence_duration_ms")
    if strategy.get("type") != "server_vad":
        raise _invalid("chunking_strategy", values[-1], 'auto, or an object of type "server_vad"')
    return draft.request if silence_ms is None else _silence(draft, [str(silence_ms)])


def _chunking_type(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    if values[-1] != "server_vad":
        raise _invalid("chunking_strategy[type]", values[-1], "server_vad")
    return draft.request


def _silence(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    text = values[-1]
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not MIN_SILENCE_MS <= int(text) <= MAX_SILENCE_MS:
        accepted = f"integers from {MIN_SILENCE_MS} to {MAX_SILENCE_MS}"
        raise _invalid("chunking_strategy[silence_duration_ms]", text, accepted)
    return _with_options(draft, endpoint_silence_ms=int(text))


def _diarization(draft: _Draft, values: list[str]) -> TranscriptionRequest:
    raise GatewayError(ErrorCode.FIELD_INVALID, "diarization is not supported", "known_speaker_names")


FIELDS = (
    Field("file", "the recording; its content decides the format, not its name"),
    Field("model", "a replica group, or a name of OpenAI's, which is the first group; others: 404"),
    Field("language", "a language of the model, or that of `--language`; others: 400", _language),
    Field("languages[]", "the same; several leave the choice to the model", _language),
    Field("keywords[]", f"boosted phrases at {KEYWORD_NATS:g} nats per token", _keywords),
    Field("chunking_strategy", "`auto`: `--endpoint-silence-ms`; or an object, also as JSON", _chunking),
    Field("chunking_strategy[type]", "`server_vad`", _chunking_type),
    Field(
        "chunking_strategy[silence_duration_ms]",
        f"silence that ends a segment, {MIN_SILENCE_MS} to {MAX_SILENCE_MS}",
        _silence,
    ),
    Field("include[]", "`logprobs`: ln of the confidence of each word, in json and in the stream", _include),
    Field("response_format", "`json`, `text`, `srt`, `vtt`, `verbose_json`; others: 400", _response_format),
    Field("timestamp_granularities[]", "`segment`, `word`: lists in verbose_json", _granularities),
    Field("stream", "`true`: server-sent events with the text that is stable", _stream),
    Field("known_speaker_names[]", "400: there is no diarization", _diarization),
    Field("known_speaker_references[]", "400: there is no diarization", _diarization),
)
"""In the order in which they are read. Other fields, such as `prompt` and `temperature`, have no effect."""
_BY_NAME = {each.name: each for each in FIELDS}


def parse_fields(values: Mapping[str, list[str]], streams: Streams, config: Config) -> TranscriptionRequest:
    """The request that a form's fields describe. GatewayError names a wrong field.

    Fields without an effect are named in `ignored`; with `--strict` they are wrong.
    """
    group = streams.group(values.get("model", [""])[-1])
    options = StreamOptions(model=group.name, endpoint_silence_ms=config.endpoint_silence_ms)
    request = TranscriptionRequest(group, options, shown_language(group, None, config.language))
    # The name of an array is written with or without brackets.
    given = {name if name in _BY_NAME else f"{name}[]": texts for name, texts in values.items()}
    ignored = sorted(name.removesuffix("[]")[:60] for name in given if name not in _BY_NAME)
    if ignored and config.strict:
        raise GatewayError(ErrorCode.FIELD_INVALID, f"{ignored[0]} has no effect here (--strict)", ignored[0])
    for each in FIELDS:
        if each.read is not None and each.name in given:
            request = each.read(_Draft(request, config.language), given[each.name])
    if request.is_streamed and request.response_format not in ("json", "text"):
        raise _invalid("response_format", request.response_format, "json or text, with stream")
    return replace(request, ignored=tuple(ignored))
