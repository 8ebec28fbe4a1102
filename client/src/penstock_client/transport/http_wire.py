"""The part of HTTP without connections: POST bodies, responses, TLS. Opens nothing.

The bodies are tritonclient's, the connections are not: the HTTP library of tritonclient repeats requests when a
connection breaks, and the server would decode a repeated request twice.
"""

import http
import json
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from penstock_client.connection import Endpoint, read_pem
from penstock_client.errors import (
    ClientError,
    ProtocolError,
    ServerFullError,
    ServerUnreachableError,
    StreamError,
    StreamId,
)
from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, Request, Result
from penstock_client.replies import parse_reply, stream_error
from penstock_client.transport.probe import NOT_A_SERVER

HEADER_LENGTH = "Inference-Header-Content-Length"
NOT_HTTP = "the reply is not HTTP"


class Post(NamedTuple):
    """One POST."""

    path: str
    body: bytes
    headers: dict[str, str]


def post_of(endpoint: Endpoint, stream_id: StreamId, request: Request) -> Post:
    """The POST that carries a request."""
    body, header_length = request_body(stream_id, request)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_length)}
    return Post(f"/v2/models/{quote(endpoint.model)}/infer", body, {**endpoint.options.headers, **headers})


def request_body(stream_id: StreamId, request: Request) -> tuple[bytes, int]:
    """The body of the POST, and the length of the JSON header that it starts with."""
    audio = InferInput(INPUT_NAME, [1, request.samples], INPUT_DATATYPE)
    audio.set_data_from_numpy(np.frombuffer(request.audio, "<f4")[None])
    body, header_length = InferenceServerClient.generate_request_body(
        [audio],
        sequence_id=stream_id,
        sequence_start=request.is_start,
        sequence_end=request.is_end,
        parameters=dict(request.parameters),
    )
    return body, header_length


def read_response(
    endpoint: Endpoint, stream_id: StreamId, status: int, header_length: str | None, body: bytes
) -> list[Result]:
    """The results that a response holds. Raises ClientError for a server's error, and for a reply of another server."""
    return parse_reply(stream_id, read_outputs(endpoint, stream_id, status, header_length, body))


def read_outputs(
    endpoint: Endpoint, stream_id: StreamId, status: int, header_length: str | None, body: bytes
) -> Callable[[str], npt.NDArray[Any] | None]:
    """Returns an output of a response by its name, None for a missing one. Raises as `read_response`."""
    if status != http.HTTPStatus.OK:
        raise _error(endpoint, stream_id, status, body)
    try:
        reply = InferenceServerClient.parse_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
    except (InferenceServerException, ValueError, KeyError, TypeError) as error:
        raise ProtocolError(stream_id, f"the server's reply cannot be read: {error}") from error
    outputs: Callable[[str], npt.NDArray[Any] | None] = reply.as_numpy
    return outputs


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """The TLS context with the options' certificates; None without TLS. Raises ValueError for an unusable file."""
    if not endpoint.is_secure:
        return None
    options = endpoint.options
    context = ssl.create_default_context()
    try:
        if (roots := read_pem(options.root_certificates)) is not None:
            context = ssl.create_default_context(cadata=roots.decode("ascii"))
        if options.client_certificate is not None and options.client_key is not None:
            for path in (options.client_certificate, options.client_key):
                read_pem(path)  # its errors name the file
            context.load_cert_chain(options.client_certificate, options.client_key, password="")
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ValueError(f"the certificates cannot be used: {error}") from error
    return context


def _error(endpoint: Endpoint, stream_id: StreamId, status: int, body: bytes) -> ClientError:
    try:
        message = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        message = None
    if not isinstance(message, str) or status == http.HTTPStatus.METHOD_NOT_ALLOWED:  # of Triton's metrics port
        is_unknown = status == http.HTTPStatus.NOT_FOUND
        other = NOT_A_SERVER["http"] if is_unknown else f"HTTP status {status} without an error message of Triton"
        return ServerUnreachableError(endpoint.url, other)
    is_unavailable = status == http.HTTPStatus.SERVICE_UNAVAILABLE
    return stream_error(stream_id, message, ServerFullError if is_unavailable else StreamError)
