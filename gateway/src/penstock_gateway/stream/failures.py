"""The gateway's errors for those of a stream on a replica."""

import logging
import re
from collections.abc import Mapping

from penstock_common.errors import ClientError, StreamError
from penstock_gateway.errors import GatewayCode, GatewayError

log = logging.getLogger(__name__)
_CODES: Mapping[str, GatewayCode] = {
    "STREAM_LIMIT": GatewayCode.STREAMS_EXHAUSTED,
    "PHRASE_MEMORY_FULL": GatewayCode.STREAMS_EXHAUSTED,
    "AUDIO_MEMORY_FULL": GatewayCode.STREAMS_EXHAUSTED,
    "SPEAKERS_NOT_SERVED": GatewayCode.SPEAKERS_NOT_SERVED,
    "AUDIO_INVALID": GatewayCode.AUDIO_INVALID,
    "AUDIO_TOO_LONG": GatewayCode.TOO_LARGE,
    "OPTION_INVALID": GatewayCode.FIELD_INVALID,
    "PHRASES_INVALID": GatewayCode.FIELD_INVALID,
}
"""By the code of the client's error. Every other one means that the replica lost the stream."""
_STREAM = re.compile(r"^stream \S+( of client '[^']*')?: ")
"""The server's name of a stream, which means nothing to a client."""


class OnlyOtherModelsError(StreamError):
    """A stream's replica is lost, and those that answer serve another model, with other settings or another version."""

    def __init__(self) -> None:
        super().__init__("", "the server of the stream failed, and the others differ in model, settings or version")


def gateway_error(error: ClientError) -> GatewayError:
    """The error of the gateway for that of a stream on a replica."""
    code = _CODES.get(error.code, GatewayCode.STREAM_LOST)
    message = _STREAM.sub("", error.message if isinstance(error, StreamError) else error.text)
    if code is GatewayCode.STREAM_LOST and not isinstance(error, OnlyOtherModelsError):
        log.warning("a stream is lost: %s", error)
        message = "the server of the stream failed or did not answer"  # the cause may contain the address of a server
    return GatewayError(code, message)
