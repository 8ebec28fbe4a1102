"""What both HTTP fronts share: a piece as a POST, a response as a result. Opens nothing.

The bodies are tritonclient's, its connections are not: a piece must never be sent twice (the server would decode it
twice), and the HTTP client below tritonclient repeats requests when a connection breaks.
"""

import http
import json
import ssl
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from penstock_client.endpoint import Endpoint, read_pem
from penstock_client.errors import ClientError, ProtocolError, ServerFullError, ServerUnreachableError, StreamId
from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, Piece, Result, parse_reply, refusal

HEADER_LENGTH = "Inference-Header-Content-Length"
NOT_HTTP = "what answers there does not speak HTTP"


class Post(NamedTuple):
    """One request."""

    path: str
    body: bytes
    headers: dict[str, str]


def post_of(endpoint: Endpoint, stream_id: StreamId, piece: Piece) -> Post:
    """The POST that carries a piece."""
    body, header_length = request_body(stream_id, piece)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_length)}
    return Post(f"/v2/models/{quote(endpoint.model)}/infer", body, {**endpoint.options.headers, **headers})


def request_body(stream_id: StreamId, piece: Piece) -> tuple[bytes, int]:
    """The POST body that carries a piece, and the length of the JSON header it starts with."""
    audio = InferInput(INPUT_NAME, [1, piece.samples], INPUT_DATATYPE)
    audio.set_data_from_numpy(np.frombuffer(piece.audio, "<f4")[None])
    body, header_length = InferenceServerClient.generate_request_body(
        [audio],
        sequence_id=stream_id,
        sequence_start=piece.is_first,
        sequence_end=piece.is_last,
        parameters=dict(piece.parameters),
    )
    return body, header_length


def read_response(
    endpoint: Endpoint, stream_id: StreamId, status: int, header_length: str | None, body: bytes
) -> Result:
    """The result that a response holds. Raises ClientError for a refusal, or where no Penstock server answers."""
    if status != http.HTTPStatus.OK:
        raise _refusal(endpoint, stream_id, status, body)
    try:
        reply = InferenceServerClient.parse_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
    except (InferenceServerException, ValueError, KeyError, TypeError) as error:
        raise ProtocolError(stream_id, f"the server's reply cannot be read: {error}") from error
    return parse_reply(stream_id, reply.as_numpy)


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """What checks the server's certificate and shows ours; None without TLS. ValueError names an unusable file."""
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


def _refusal(endpoint: Endpoint, stream_id: StreamId, status: int, body: bytes) -> ClientError:
    try:
        message = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ServerUnreachableError(endpoint.url, f"HTTP status {status} without a message from Triton")
    error = refusal(stream_id, str(message), endpoint.model)
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        return ServerFullError(stream_id, error.message)
    return error
