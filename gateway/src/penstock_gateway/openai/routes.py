"""OpenAI's HTTP API: `/v1/audio/transcriptions` reads the form and replies in the format that it asks for."""

import os
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO

from fastapi import APIRouter
from pydantic import BaseModel
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from penstock_client.audio.remarks import header
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.api import (
    CLIENT_GONE,
    ERRORS,
    GatewayOf,
    KeyOf,
    UploadKeyOf,
    body_schema,
    limited,
    while_connected,
)
from penstock_gateway.openai.formats import Transcription, render
from penstock_gateway.openai.job import PROTOCOL, TranscriptionJob
from penstock_gateway.openai.request import TranscriptionForm, TranscriptionRequest, parse_fields
from penstock_gateway.openai.sse import TranscriptEvents, error_event
from penstock_gateway.security.limits import MAX_UPLOAD_BYTES, RETRY_AFTER_S, WriteLimit
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.live_stream import ModelGroup

MAX_FIELDS = 2200
"""Of a form: as many keywords as a server may accept, and the others."""
IGNORED_HEADER, WARNING_HEADER = "penstock-ignored", "penstock-warning"
_MAX_IGNORED_CHARS = 1000
_CHARSETS = ("utf-8", "utf8", "us-ascii")
MAX_FORM_BYTES = MAX_UPLOAD_BYTES + (1 << 20)
"""The file and the other fields."""
_CONTENTS = ("application/json", "text/plain", "text/vtt", "text/event-stream")
router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=ERRORS)


class Model(BaseModel):
    """A replica group."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "penstock"


class Models(BaseModel):
    """All groups with a replica that answers."""

    object: str = "list"
    data: list[Model]


@router.get("/models")
async def list_models(gateway: GatewayOf, key: KeyOf) -> Models:
    """The replica groups with a replica that answers."""
    return Models(data=[_model(group) for group in gateway.streams.groups])


@router.get("/models/{model:path}")
async def retrieve_model(model: str, gateway: GatewayOf, key: KeyOf) -> Model:
    """One replica group; by a name of OpenAI's, too."""
    return _model(gateway.streams.group(model))


def _model(group: ModelGroup) -> Model:
    return Model(id=group.name)


@router.post(
    "/audio/transcriptions",
    response_class=Response,
    responses={200: {"content": {name: {} for name in _CONTENTS}}},
    openapi_extra=body_schema("multipart/form-data", TranscriptionForm),
)
async def transcribe(request: Request, gateway: GatewayOf, key: UploadKeyOf) -> Response:
    """Transcribes the uploaded file, in the format that the form asks for. Stops where the client disconnects."""
    _check_charset(request)
    wanted, recording = await _read(gateway, limited(request, MAX_FORM_BYTES, "file"))
    ignored = ",".join(wanted.ignored)[:_MAX_IGNORED_CHARS]
    headers = {IGNORED_HEADER: ascii(ignored)[1:-1]} if ignored else {}  # names are the client's
    job = await while_connected(request, TranscriptionJob.start(gateway, wanted, recording, key))
    if job is None:
        return Response(status_code=CLIENT_GONE)
    if wanted.form.stream:
        return _EventStream(gateway, job, wanted, headers)
    try:
        transcription = await while_connected(request, _transcription(job))
    finally:
        await job.close()
    if transcription is None:
        return Response(status_code=CLIENT_GONE)
    if transcription.remarks:
        headers[WARNING_HEADER] = header(transcription.remarks)
    content, media_type = render(transcription, wanted)
    return Response(content, headers=headers, media_type=media_type)


async def _read(gateway: Gateway, request: Request) -> tuple[TranscriptionRequest, BinaryIO]:
    """The request and its file, which is on the disk."""
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            return await _parse(gateway, form)
    except OSError as error:
        message = f"the upload cannot be stored: {error.strerror}"
        raise GatewayError(ErrorCode.OVERLOADED, message, retry_after_s=RETRY_AFTER_S) from error


async def _parse(gateway: Gateway, form: FormData) -> tuple[TranscriptionRequest, BinaryIO]:
    values: dict[str, list[str]] = {}
    upload: UploadFile | None = None
    for name, value in form.multi_items():
        if isinstance(value, str):
            values.setdefault(name, []).append(value)
        elif name == "file":
            upload = value
    wanted = parse_fields(values, gateway.streams, gateway.config)
    if upload is None:
        raise GatewayError(ErrorCode.FIELD_INVALID, "file is missing; accepted: an uploaded recording", "file")
    if upload.size is None or upload.size > MAX_UPLOAD_BYTES:
        raise GatewayError(ErrorCode.TOO_LARGE, f"file has more than {MAX_UPLOAD_BYTES:,} bytes", "file")
    return wanted, os.fdopen(os.dup(upload.file.fileno()), "rb")


class _EventStream(StreamingResponse):
    """Server-sent events. A client that does not read them, or disconnects, ends its stream."""

    def __init__(
        self, gateway: Gateway, job: TranscriptionJob, wanted: TranscriptionRequest, headers: Mapping[str, str]
    ):
        headers = {**headers, "Cache-Control": "no-cache"}
        super().__init__(self._content(), headers=headers, media_type="text/event-stream")
        self._gateway = gateway
        self._job = job
        self._has_logprobs = bool(wanted.form.include)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Closes the stream, however the response ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._job.close()

    async def stream_response(self, send: Send) -> None:
        """Limits the time of each write."""
        limit = WriteLimit()

        async def limited(message: Message) -> None:
            await limit.write(send(message))

        try:
            await super().stream_response(limited)
        except GatewayError as error:
            self._gateway.note_rejection(PROTOCOL, error)

    async def _content(self) -> AsyncIterator[bytes]:
        events = TranscriptEvents(self._has_logprobs)
        try:
            async for event in self._job.events():
                if (delta := events.add(event)) is not None:
                    yield delta
        except GatewayError as error:
            self._gateway.note_rejection(PROTOCOL, error)
            last = error_event(error)
        else:
            last = events.done(self._job.duration_s, self._job.remarks)
        await self._job.close()  # first: a client that has read the last event may open its next stream
        yield last


def _check_charset(request: Request) -> None:
    """GatewayError for a form that is not in UTF-8: some of Python's codecs fail in ways its parser does not know."""
    _, options = parse_options_header(request.headers.get("content-type"))
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in _CHARSETS:
        message = f"the charset is {charset[:60]!r}; accepted: {_CHARSETS[0]}"
        raise GatewayError(ErrorCode.FIELD_INVALID, message, "content-type")


async def _transcription(job: TranscriptionJob) -> Transcription:
    finals = [event async for event in job.events() if isinstance(event, Final)]
    return Transcription(finals, job.duration_s, job.remarks)
