"""Streams over HTTP: messages, and a transport for asyncio with one POST per request, one at a time.

The bodies are tritonclient's, the connections are not: its HTTP library repeats requests when a connection breaks, and
the server would decode a repeated request twice. aiohttp repeats those with an idempotent method only; POST is not.
"""

import asyncio
import http
import json
import os
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException
from yarl import URL

from penstock_client.connection import Endpoint, read_pem, retry_pauses_s
from penstock_client.errors import (
    ClientError,
    ProtocolError,
    ServerFullError,
    ServerUnreachableError,
    StreamError,
    StreamId,
)
from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, MAX_REPLY_BYTES, Request, Result
from penstock_client.replies import parse_reply, stream_error
from penstock_client.transport.async_channel import TaskTransport
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


class AsyncHttpConnection:
    """The connections to one server's HTTP port. The first stream opens the session, in that stream's event loop."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tls = tls_context(endpoint)
        self._http: aiohttp.ClientSession | None = None

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "AsyncHttpTransport":
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        if self._http is None:
            self._http = _open_session(self._tls)
        return AsyncHttpTransport(self._endpoint, self._http, stream_id, timeout_s)

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()


class AsyncHttpTransport(TaskTransport):
    """One stream as a sequence of POSTs."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession, stream_id: StreamId, timeout_s: float):
        super().__init__(stream_id, endpoint, timeout_s)
        self._http = session
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)

    async def _run(self) -> None:
        async for request in self.requests():
            try:
                results = await self._post_with_retries(request)
                with self.update() as session:
                    session.deliver(*results)
            except ServerUnreachableError as error:
                await self._fail_connection(error.reason)
            except ClientError as error:
                await self.fail_or_wait_for_slot(error)
            except asyncio.TimeoutError:
                with self.update() as session:
                    session.time_out()
                return
            except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
                if not await self._fail_connection(error_text(error)):
                    return

    async def _post_with_retries(self, request: Request) -> list[Result]:
        """Repeats a failed attempt to connect, only where none of the stream's audio can have reached the server."""
        for pause_s in retry_pauses_s(self._connect_retry_s):
            try:
                return await self._post(request)
            except aiohttp.ClientSSLError:  # another attempt meets the same certificate
                raise
            except aiohttp.ClientConnectorError:
                if not self.session.is_unsent or await self.pause(pause_s):
                    raise
        return await self._post(request)

    async def _post(self, request: Request) -> list[Result]:
        path, body, headers = post_of(self._endpoint, self._stream_id, request)
        async with self._http.post(
            url_of(self._endpoint, path),
            data=body,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
            trace_request_ctx=self,
        ) as response:
            content = await read_content(response, self._stream_id)
            header_length = response.headers.get(HEADER_LENGTH)
            return read_response(self._endpoint, self._stream_id, response.status, header_length, content)


def _open_session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A session with any number of connections, that reports to a transport when its request has one."""

    async def note_connection(session: aiohttp.ClientSession, context: SimpleNamespace, event: object) -> None:
        with context.trace_request_ctx.update() as state:
            state.connected()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(note_connection)
    trace.on_connection_reuseconn.append(note_connection)
    return open_session(tls, [trace])


def open_session(tls: ssl.SSLContext | None, traces: list[aiohttp.TraceConfig] | None = None) -> aiohttp.ClientSession:
    """A session with any number of connections, and without cookies."""
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, trace_configs=traces, cookie_jar=aiohttp.DummyCookieJar())


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
