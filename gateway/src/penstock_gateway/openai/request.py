"""A transcription request: its form, whose file is on the disk, and what the fields become."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from penstock_common.audio.tracks import EACH, MIX
from penstock_common.options import MAX_SILENCE_MS, MAX_SPEAKERS, MIN_SILENCE_MS, Numbers
from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.openai_objects import KEYWORD_NATS, UNKNOWN_SPEAKER, speaker_name
from penstock_gateway.stream.options import (
    LiveStreamOptions,
    ModelGroup,
    choose_language,
    choose_numbers,
    shown_language,
    unused_language,
    unused_model,
)
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import NO_EFFECT, accepted, invalid, parse_object, problem, read_speakers

_CHUNKING, _SILENCE = "chunking_strategy", "chunking_strategy[silence_duration_ms]"
MAX_FIELDS = 2200
"""Most fields of a form: as many keywords as a server may accept, and the others."""
_CHARSETS = ("utf-8", "utf8", "us-ascii")


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise accepted("true, 1, false, 0")
    return text.lower() in ("true", "1")


def _speakers(text: str) -> str | int:
    return read_speakers(int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text.lower())


def _different(names: list[str]) -> list[str]:
    if len({name.strip() for name in (*names, UNKNOWN_SPEAKER)}) <= len(names):
        raise accepted(f"names that differ, and not {UNKNOWN_SPEAKER!r}")
    return names


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


def _silence_ms(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not MIN_SILENCE_MS <= int(text) <= MAX_SILENCE_MS:
        raise accepted(f"integers from {MIN_SILENCE_MS} to {MAX_SILENCE_MS}")
    return int(text)


class TranscriptionForm(BaseModel):
    """The fields of the form by the names that OpenAI's clients write; also a table in docs/gateway.md.

    Other fields, such as `prompt` and `temperature`, have no effect.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    file: str | None = Field(
        None,
        description="the recording; its content decides the format, not its name",
        json_schema_extra={"format": "binary"},
    )
    model: str = Field("", description="a replica group, or an OpenAI name for the first one")
    language: str = Field(
        "", description="`auto`, or a language of the model by code or English name; no effect where it names none"
    )
    languages: list[str] = Field([], alias="languages[]", description="the same; several leave the choice to the model")
    keywords: list[str] = Field(
        [], alias="keywords[]", description=f"boosted phrases at {KEYWORD_NATS:g} nats per token"
    )
    chunking_strategy: Literal["auto", ""] = Field(
        "auto", description="`auto`: `--endpoint-silence-ms`; or an object, also as JSON"
    )
    chunking_type: Literal["server_vad"] = Field(
        "server_vad", alias="chunking_strategy[type]", description="`server_vad`"
    )
    silence_duration_ms: Annotated[int | None, BeforeValidator(_silence_ms)] = Field(
        None,
        alias="chunking_strategy[silence_duration_ms]",
        description=f"silence that ends a segment, {MIN_SILENCE_MS} to {MAX_SILENCE_MS}",
    )
    include: list[Literal["logprobs"]] = Field(
        [], alias="include[]", description="`logprobs`: ln of the confidence of each word, in json and in the stream"
    )
    response_format: Annotated[
        Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"], BeforeValidator(_lower)
    ] = Field("json", description="`json`, `text`, `srt`, `vtt`, `verbose_json`, `diarized_json`; others: 400")
    timestamp_granularities: list[Literal["segment", "word"]] = Field(
        ["segment"], alias="timestamp_granularities[]", description="`segment`, `word`: lists in verbose_json"
    )
    stream: Annotated[bool, BeforeValidator(_switch)] = Field(
        False, description="`true`, `1`: server-sent events with stable text"
    )
    speakers: Annotated[str | int, BeforeValidator(_speakers)] = Field(
        "off", description="`on`, or the most speakers, 2 to 8; diarized_json: always; json, text: no effect"
    )
    known_speaker_names: Annotated[list[str], AfterValidator(_different)] = Field(
        [],
        alias="known_speaker_names[]",
        max_length=MAX_SPEAKERS,
        description="names in the order of first speaking, in place of `A`, `B`; voices are not recognized",
    )
    numbers: Annotated[Numbers | None, BeforeValidator(_lower)] = Field(
        None, description="spoken numbers: `words`, `figures`, or a language with rules"
    )
    channels: Annotated[Literal["mix", "each"], BeforeValidator(_lower)] = Field(
        "mix", description="`each`: each channel by itself; not with `stream`"
    )
    mask_words: Annotated[bool, BeforeValidator(_switch)] = Field(
        False, description="`true`, `1`: words of `--mask-words` are masked"
    )

    @property
    def asked_speakers(self) -> str | int | None:
        """The option of the stream; None where the reply has no place for speakers."""
        if self.response_format in ("json", "text"):
            return None
        if self.speakers != "off":
            return self.speakers
        return "on" if self.response_format == "diarized_json" else None

    def speaker_name(self, speaker: int | None) -> str:
        """In replies."""
        return speaker_name(speaker, self.known_speaker_names)


_NAMES = {each.alias or name for name, each in TranscriptionForm.model_fields.items()}


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """Fields of a request, without the file."""

    form: TranscriptionForm
    group: ModelGroup
    options: LiveStreamOptions
    language: str
    """For the reply."""
    ignored: Sequence[str]
    """Fields without an effect, and keywords that the model cannot write."""


def parse_fields(values: Mapping[str, list[str]], streams: ReplicaStreams, config: Config) -> TranscriptionRequest:
    """The request that a form's fields describe. GatewayError names a wrong field.

    Fields without an effect are named in `ignored`; with `--strict` they are wrong.
    """
    model = values.get("model", [""])[-1]
    group = streams.group(model)
    form = _form(values)
    ignored = unused_model(model, group) + sorted(
        name.removesuffix("[]").removesuffix("[]")[:60] for name in form.model_extra or ()
    )
    if form.response_format != "verbose_json" and "timestamp_granularities" in form.model_fields_set:
        ignored.append("timestamp_granularities")
    if form.asked_speakers is None:
        ignored += ["speakers"] * (form.speakers != "off")
        ignored += ["known_speaker_names"] * bool(form.known_speaker_names)
    ignored += ["mask_words"] * (form.mask_words and config.mask_words is None)
    if form.include and form.response_format != "json" and not form.stream:
        ignored.append("include")
    if form.stream and form.response_format not in ("json", "text", "diarized_json"):
        message = f"is {form.response_format!r}; accepted: json, text or diarized_json, with stream"
        raise invalid("response_format", message)
    if form.stream and form.channels == EACH:
        raise invalid("channels", f"is {EACH!r}; accepted with stream: {MIX}")
    language: str | None = None
    code: str | None = None
    for codes in ([form.language], form.languages):
        chosen = {each: choose_language(each, group, "language") for each in codes if each}
        if len(chosen) == 1:
            ((code, language),) = chosen.items()
    named = dict.fromkeys((form.language, *form.languages))
    ignored += [unused for each in named for unused in unused_language(each, group, config.language)]
    if ignored and config.strict:
        raise invalid(ignored[0].partition(" ")[0], NO_EFFECT)
    keywords = [text.strip() for text in form.keywords if text.strip()]
    if not config.strict:  # else the server rejects them
        ignored += [f"keywords {text!r}" for text in group.unwritable(keywords)]
    shown_as = shown_language(group, code, config.language)
    options = LiveStreamOptions(
        model=group.name,
        language=language,
        phrases=tuple((text, KEYWORD_NATS) for text in keywords),
        endpoint_silence_ms=form.silence_duration_ms or config.endpoint_silence_ms,
        is_file=True,
        speakers=form.asked_speakers,
        masks=shown_as if form.mask_words else None,
        numbers=choose_numbers(form.numbers, group, language, shown_as, "numbers"),
    )
    return TranscriptionRequest(form, group, options, shown_as, ignored)


def _form(values: Mapping[str, list[str]]) -> TranscriptionForm:
    """The name of an array is written with or without brackets; of other fields the last value counts."""
    given: dict[str, Any] = {}
    for name, texts in values.items():
        is_array = name not in _NAMES or name.endswith("[]")
        if name in _NAMES and not any(texts):
            continue  # an empty field is none
        given[name if name in _NAMES else f"{name}[]"] = texts if is_array else texts[-1]
    strategy = parse_object(given.get(_CHUNKING, "")) or {}
    if strategy.get("type") == "server_vad":
        del given[_CHUNKING]
        if (silence_ms := strategy.get("silence_duration_ms")) is not None:
            given.setdefault(_SILENCE, str(silence_ms))
    try:
        return TranscriptionForm.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if name == _CHUNKING:
            first["ctx"] = {"expected": "'auto', or an object of type \"server_vad\""}
        raise invalid(name.removesuffix("[]"), problem(first)) from None


class _FormParser(MultiPartParser):
    """Takes the part `file` for a file also where it has no file name, or only `filename*` (RFC 5987).

    Counts everything but the file's content: a character of a text may take four times its byte.
    """

    _fields_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """A piece of a part."""
        if self._current_part.file is None:
            self._count(end - start)
        super().on_part_data(data, start, end)

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        """A piece of a header's name."""
        self._count(end - start)
        super().on_header_field(data, start, end)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        """A piece of a header's value."""
        self._count(end - start)
        super().on_header_value(data, start, end)

    def _count(self, size: int) -> None:
        self._fields_bytes += size
        if self._fields_bytes > limits.MAX_FIELDS_BYTES:
            message = f"the fields of the form have more than {limits.MAX_FIELDS_BYTES:,} bytes"
            raise GatewayError(GatewayCode.TOO_LARGE, message)

    def on_headers_finished(self) -> None:
        """The header of a part is complete."""
        part = self._current_part
        header = part.content_disposition or b""
        _, options = parse_options_header(header)
        if options.get(b"name") == b"file" and b"filename" not in options:
            part.content_disposition = header + b'; filename=""'
        super().on_headers_finished()


async def read_form(
    gateway: Gateway, request: Request, reduce: Callable[[int], None]
) -> tuple[TranscriptionRequest, BinaryIO]:
    """The request and its file. Calls `reduce` with the bytes that the file takes. GatewayError."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    _check_charset(options.get(b"charset", b"utf-8").decode("latin-1"))
    form = FormData()
    try:
        if kind == b"multipart/form-data":
            form = await _FormParser(request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS).parse()
        return _parse(gateway, form, reduce)
    except MultiPartException as error:
        raise GatewayError(GatewayCode.FIELD_INVALID, f"the form cannot be read: {error.message}") from None
    except OSError as error:
        message = f"the upload cannot be stored: {error.strerror}"
        raise GatewayError(GatewayCode.OVERLOADED, message) from error
    finally:
        await form.close()


def _parse(gateway: Gateway, form: FormData, reduce: Callable[[int], None]) -> tuple[TranscriptionRequest, BinaryIO]:
    values: dict[str, list[str]] = {}
    upload: UploadFile | None = None
    for name, value in form.multi_items():
        if isinstance(value, str):
            values.setdefault(name, []).append(value)
        elif name == "file":
            upload = value
    wanted = parse_fields(values, gateway.streams, gateway.config)
    if upload is None:
        raise GatewayError(GatewayCode.FIELD_INVALID, "file is missing; accepted: an uploaded recording", "file")
    size = upload.size or 0
    if size > gateway.config.max_upload_bytes:
        message = f"file has {size:,} bytes; accepted: up to {gateway.config.max_upload_mb} MB (--max-upload-mb)"
        raise GatewayError(GatewayCode.TOO_LARGE, message, "file")
    reduce(size)
    return wanted, os.fdopen(os.dup(upload.file.fileno()), "rb")


def _check_charset(charset: str) -> None:
    """GatewayError for a form that is not in UTF-8: some of Python's codecs fail in ways its parser does not know."""
    if charset.lower() not in _CHARSETS:
        message = f"the charset is {charset[:60]!r}; accepted: {_CHARSETS[0]}"
        raise GatewayError(GatewayCode.FIELD_INVALID, message, "content-type")
