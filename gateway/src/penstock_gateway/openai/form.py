"""The form of a transcription request: its fields, and its file, which is on the disk."""

import os
from collections.abc import Callable
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import BinaryIO

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.openai.request import TranscriptionRequest, parse_fields
from penstock_gateway.security.limits import RETRY_AFTER_S

MAX_FIELDS = 2200
"""Of a form: as many keywords as a server may accept, and the others."""
_CHARSETS = ("utf-8", "utf8", "us-ascii")


class _Parser(MultiPartParser):
    """Takes the part `file` for a file also where it has no file name, or only `filename*` (RFC 5987)."""

    def on_headers_finished(self) -> None:
        """The header of a part is complete."""
        part = self._current_part
        header = part.content_disposition or b""
        _, options = parse_options_header(header)
        name = options.get(b"name")
        if name is None and (name := _extended_name(header)) is not None:
            header += b'; name="' + name.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        if name == b"file" and b"filename" not in options:
            header += b'; filename=""'
        part.content_disposition = header
        super().on_headers_finished()


def _extended_name(header: bytes) -> bytes | None:
    """The parameter `name*`."""
    message = Message()
    message["content-disposition"] = header.decode("latin-1")
    value = message.get_param("name", header="content-disposition")
    return None if value is None else collapse_rfc2231_value(value).encode()


async def read_form(
    gateway: Gateway, request: Request, reduce: Callable[[int], None]
) -> tuple[TranscriptionRequest, BinaryIO]:
    """The request and its file. Calls `reduce` with the bytes that the file takes. GatewayError."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    _check_charset(options.get(b"charset", b"utf-8").decode("latin-1"))
    form = FormData()
    try:
        if kind == b"multipart/form-data":
            form = await _Parser(request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS).parse()
        return _parse(gateway, form, reduce)
    except MultiPartException as error:
        raise GatewayError(ErrorCode.FIELD_INVALID, f"the form cannot be read: {error.message}") from None
    except OSError as error:
        message = f"the upload cannot be stored: {error.strerror}"
        raise GatewayError(ErrorCode.OVERLOADED, message, retry_after_s=RETRY_AFTER_S) from error
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
        raise GatewayError(ErrorCode.FIELD_INVALID, "file is missing; accepted: an uploaded recording", "file")
    size = upload.size or 0
    if size > gateway.config.max_upload_bytes:
        message = f"file has {size:,} bytes; accepted: up to {gateway.config.max_upload_mb} MB (--max-upload-mb)"
        raise GatewayError(ErrorCode.TOO_LARGE, message, "file")
    reduce(size)
    return wanted, os.fdopen(os.dup(upload.file.fileno()), "rb")


def _check_charset(charset: str) -> None:
    """GatewayError for a form that is not in UTF-8: some of Python's codecs fail in ways its parser does not know."""
    if charset.lower() not in _CHARSETS:
        message = f"the charset is {charset[:60]!r}; accepted: {_CHARSETS[0]}"
        raise GatewayError(ErrorCode.FIELD_INVALID, message, "content-type")
