"""Errors of a replica as errors of the gateway."""

import logging
import re
from collections.abc import Mapping

from penstock_client import ClientError, StreamError
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import RETRY_AFTER_S

log = logging.getLogger(__name__)
_CODES: Mapping[str, ErrorCode] = {
    "STREAM_LIMIT": ErrorCode.STREAMS_EXHAUSTED,
    "PHRASE_MEMORY_FULL": ErrorCode.STREAMS_EXHAUSTED,
    "AUDIO_MEMORY_FULL": ErrorCode.STREAMS_EXHAUSTED,
    "SPEAKERS_NOT_SERVED": ErrorCode.SPEAKERS_NOT_SERVED,
    "AUDIO_INVALID": ErrorCode.AUDIO_INVALID,
    "AUDIO_TOO_LONG": ErrorCode.TOO_LARGE,
    "OPTION_INVALID": ErrorCode.FIELD_INVALID,
    "PHRASES_INVALID": ErrorCode.FIELD_INVALID,
}
"""By the code of the client's error. Every other one means that the replica lost the stream."""
_STREAM = re.compile(r"^stream \S+( of client '[^']*')?: ")
"""The server's name of a stream, which means nothing to a client."""
_BY_CLIENT = (
    ErrorCode.AUDIO_INVALID,
    ErrorCode.FIELD_INVALID,
    ErrorCode.SPEAKERS_NOT_SERVED,
    ErrorCode.TOO_LARGE,
)


class OnlyOtherModelsError(StreamError):
    """A stream's replica is lost, and those that answer serve another model, with other settings or another version."""

    def __init__(self) -> None:
        super().__init__("", "the server of the stream failed, and the others differ in model, settings or version")


def gateway_error(error: ClientError) -> GatewayError:
    """The error of the gateway for that of a stream on a replica."""
    code = _CODES.get(error.code, ErrorCode.STREAM_LOST)
    if isinstance(error, OnlyOtherModelsError):
        return GatewayError(code, error.message, retry_after_s=RETRY_AFTER_S)
    if code is ErrorCode.STREAM_LOST:  # the cause may contain the address of a server
        log.warning("a stream is lost: %s", error)
        return GatewayError(code, "the server of the stream failed or did not answer", retry_after_s=RETRY_AFTER_S)
    message = error.message if isinstance(error, StreamError) else error.text
    message = _STREAM.sub("", message)
    retry_after_s = None if code in _BY_CLIENT else RETRY_AFTER_S
    return GatewayError(code, message, retry_after_s=retry_after_s, server_code=error.code)
