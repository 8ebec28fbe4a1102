"""OpenAI's HTTP API: `/v1/audio/transcriptions` reads the form and replies in the format that it asks for."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway import limits
from penstock_gateway.errors import shown_names
from penstock_gateway.http.api import ERRORS, GatewayOf, KeyOf, UploadKeyOf, body_schema, limited
from penstock_gateway.openai.replies import TranscriptionJob, reply_to
from penstock_gateway.openai.request import TranscriptionForm, read_form
from penstock_gateway.stream.options import ModelGroup

IGNORED_HEADER = "penstock-ignored"
_Upload = tuple[Request, Callable[[int], None]]
_CONTENTS = ("application/json", "text/plain", "text/vtt", "text/event-stream")
router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=ERRORS)


class Model(BaseModel):
    """A replica group."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "penstock"
    live: bool
    """The model takes live audio, not only files."""


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
    return Model(id=group.name, live=group.takes_live)


async def _upload(request: Request, gateway: GatewayOf, key: UploadKeyOf) -> AsyncIterator[_Upload]:
    """The body of a request, for which there is room until the reply has ended, and what takes the bytes to keep."""
    taken, max_bytes = 0, gateway.config.max_upload_bytes + limits.MAX_FIELDS_BYTES
    with gateway.recordings.growing(key.name) as resize:

        async def take(size: int) -> None:
            nonlocal taken
            await gateway.recordings.grow(resize, key.name, taken, size)
            taken = size

        arrival = partial(gateway.recordings.arrival, key.name)
        yield limited(request, max_bytes, "file", "--max-upload-mb", take, arrival), resize


@router.post(
    "/audio/transcriptions",
    response_class=Response,
    responses={200: {"content": {name: {} for name in _CONTENTS}}},
    openapi_extra=body_schema("multipart/form-data", TranscriptionForm),
)
async def transcribe(
    request: Request, gateway: GatewayOf, key: UploadKeyOf, upload: Annotated[_Upload, Depends(_upload)]
) -> Response:
    """Transcribes the uploaded file, in the format that the form asks for. Stops where the client disconnects."""
    wanted, recording = await read_form(gateway, *upload)
    headers = {IGNORED_HEADER: ",".join(shown_names(wanted.ignored))} if wanted.ignored else {}
    start = partial(TranscriptionJob.start, gateway, wanted, recording, key)
    return await reply_to(request, gateway, wanted, start, headers)
