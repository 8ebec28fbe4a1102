"""HTTP: sessions, POSTs and their replies.

The bodies are tritonclient's, the connections are not: its HTTP library repeats requests when a connection breaks, and
the server would decode a repeated request twice. aiohttp repeats those with an idempotent method only; POST is not.
"""

import http
import json
import os
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException
from yarl import URL

from penstock_client.batched.rows import RowsMessage
from penstock_client.connection import Endpoint, read_pem
from penstock_client.protocol import MAX_REPLY_BYTES
from penstock_client.replies import stream_error
from penstock_client.transport.probe import NOT_A_SERVER
from penstock_common.errors import (
    ClientError,
    ProtocolError,
    ServerFullError,
    ServerUnreachableError,
    StreamError,
    StreamId,
)

HEADER_LENGTH = "Inference-Header-Content-Length"
NOT_HTTP = "the reply is not HTTP"


class Post(NamedTuple):
    """One POST."""

    path: str
    body: bytes
    headers: dict[str, str]


def post_of_rows(endpoint: Endpoint, rows: RowsMessage) -> Post:
    """The POST that carries rows of many streams."""
    inputs = [
        InferInput(name, list(values.shape), datatype).set_data_from_numpy(values)
        for name, datatype, values in rows.tensors
    ]
    body, header_length = InferenceServerClient.generate_request_body(inputs, parameters=dict(rows.parameters))
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_length)}
    return Post(f"/v2/models/{quote(endpoint.model)}/infer", body, {**endpoint.options.headers, **headers})


async def exchange(
    session: aiohttp.ClientSession, endpoint: Endpoint, stream_id: StreamId, post: Post, **limits: aiohttp.ClientTimeout
) -> Callable[[str], npt.NDArray[Any] | None]:
    """Sends a POST; returns and raises as `read_outputs`. limits: `timeout`, if it is not the session's."""
    url = url_of(endpoint, post.path)
    async with session.post(url, data=post.body, headers=post.headers, allow_redirects=False, **limits) as response:
        content = await read_content(response, stream_id)
        return read_outputs(endpoint, stream_id, response.status, response.headers.get(HEADER_LENGTH), content)


def read_outputs(
    endpoint: Endpoint, stream_id: StreamId, status: int, header_length: str | None, body: bytes
) -> Callable[[str], npt.NDArray[Any] | None]:
    """Returns an output of a response by its name, None for a missing one.

    Raises ClientError for a server's error, and for a reply of another server.
    """
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


def open_session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A session with any number of connections, and without cookies."""
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def url_of(endpoint: Endpoint, path: str) -> URL:
    """The address of a path, which is encoded already."""
    return URL(f"{'https' if endpoint.is_secure else 'http'}://{endpoint.url}{path}", encoded=True)


async def read_content(response: aiohttp.ClientResponse, stream_id: StreamId) -> bytes:
    """The body of a response. ProtocolError for one that is too large."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        if (size := size + len(part)) > MAX_REPLY_BYTES:
            response.close()
            raise ProtocolError(stream_id, f"the server's reply is larger than {MAX_REPLY_BYTES} bytes")
    return b"".join(parts)


def error_text(error: Exception) -> str:
    """Why a request failed, without its address."""
    if isinstance(error, aiohttp.ClientResponseError):  # from its parser: HTTP errors of the server do not raise it
        return NOT_HTTP
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text names an address instead
    return str(error) or type(error).__name__
