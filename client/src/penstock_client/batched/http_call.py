"""HTTP: POSTs and their replies.

The bodies are tritonclient's, the connections are not: its HTTP library repeats requests when a connection breaks, and
the server would decode a repeated request twice. aiohttp repeats those with an idempotent method only; POST is not.
"""

import asyncio
import http
import json
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException
from yarl import URL

from penstock_client.batched.call import CallLostError, RawReply, UnreadableReplyError
from penstock_client.batched.rows import Row, RowsMessage, rows_message
from penstock_client.connection import Endpoint, read_pem
from penstock_client.protocol import MAX_REPLY_BYTES, NOT_A_SERVER
from penstock_client.replies import UNREADABLE, stream_error
from penstock_common.errors import ConnectionLostError, ServerFullError, StreamError

_HEADER_LENGTH = "Inference-Header-Content-Length"
_NOT_HTTP = "the reply is not HTTP"


class HttpCall:
    """A POST for each request. The next one is sent after the reply: a proxy would not keep their order."""

    max_unanswered = 1

    def __init__(self, endpoint: Endpoint):
        self._tls, self._headers = tls_context(endpoint), endpoint.options.headers
        scheme, path = "https" if endpoint.is_secure else "http", f"/v2/models/{quote(endpoint.model)}/infer"
        self._url = URL(f"{scheme}://{endpoint.url}{path}", encoded=True)
        self._session: aiohttp.ClientSession | None = None
        self._requests: asyncio.Queue[RowsMessage | None] = asyncio.Queue()
        self._posting: asyncio.Future[RawReply] | None = None
        self._is_reached = False
        """True once a server of Triton has answered."""

    async def write(self, client_id: str, rows: Sequence[Row]) -> None:
        """Sends a request."""
        self._requests.put_nowait(rows_message(client_id, rows))

    async def replies(self) -> AsyncIterator[RawReply]:
        """The replies as they come."""
        # Any number of connections, without cookies and without limits of time: a link has its own.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            while (message := await self._requests.get()) is not None:
                self._posting = asyncio.ensure_future(self._post(self._session, message))
                yield await self._posting
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
            raise CallLostError(_error_text(error)) from error
        raise CallLostError("the call was ended")

    async def _post(self, session: aiohttp.ClientSession, rows: RowsMessage) -> RawReply:
        inputs = [
            InferInput(name, list(values.shape), datatype).set_data_from_numpy(values)
            for name, datatype, values in rows.tensors
        ]
        body, header_length = InferenceServerClient.generate_request_body(inputs, parameters=dict(rows.parameters))
        own = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(header_length)}
        headers = {**self._headers, **own}
        async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            content = await _read_content(response)
            if response.status != http.HTTPStatus.OK:
                return self._rejection(response.status, content)
            self._is_reached = True
            return _read_outputs(response.headers.get(_HEADER_LENGTH), content)

    def _rejection(self, status: int, body: bytes) -> RawReply:
        """The reply with an error. Raises CallLostError where no server of Triton has answered yet."""
        message = server_message(body)
        if message and status != http.HTTPStatus.METHOD_NOT_ALLOWED:  # of Triton's metrics port
            self._is_reached = True
            is_full = status == http.HTTPStatus.SERVICE_UNAVAILABLE
            if is_full and stream_error(0, message).code == StreamError.code:  # Triton's own error has no code
                message = f"{ServerFullError.code}: {message}"
            return RawReply(lambda name: None, message)
        is_unknown = status == http.HTTPStatus.NOT_FOUND
        other = NOT_A_SERVER if is_unknown else f"HTTP status {status} without an error message of Triton"
        if not self._is_reached:
            raise CallLostError(other)
        # A proxy answers in the server's place, and other requests may succeed.
        return RawReply(lambda name: None, f"{ConnectionLostError.code}: lost the connection to the server: {other}")

    def cancel(self) -> None:
        """Ends the call without waiting."""
        self._requests.put_nowait(None)
        if self._posting is not None:
            self._posting.cancel()

    async def close(self) -> None:
        """Ends the call and its connection."""
        self.cancel()
        if self._session is not None:
            await self._session.close()


def server_message(body: bytes) -> str:
    """Triton's message in the body of an HTTP error; empty where that is none."""
    try:
        error = json.loads(body)["error"]
    except UNREADABLE:
        return ""
    return error if isinstance(error, str) else ""


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


async def _read_content(response: aiohttp.ClientResponse) -> bytes:
    """The body of a response. UnreadableReplyError for one that is too large."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        if (size := size + len(part)) > MAX_REPLY_BYTES:
            response.close()
            raise UnreadableReplyError(f"it is larger than {MAX_REPLY_BYTES} bytes")
    return b"".join(parts)


def _read_outputs(header_length: str | None, body: bytes) -> RawReply:
    """The reply with outputs. UnreadableReplyError for a body of another server."""
    try:
        reply = InferenceServerClient.parse_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
    except (InferenceServerException, ValueError, KeyError, TypeError) as error:
        raise UnreadableReplyError(str(error)) from error

    def values(name: str) -> list[Any] | None:
        output = reply.as_numpy(name)
        return None if output is None else np.asarray(output).ravel().tolist()

    return RawReply(values)


def _error_text(error: Exception) -> str:
    """Why a request failed, without its address."""
    if isinstance(error, aiohttp.ClientResponseError):  # from its parser: HTTP errors of the server do not raise it
        return _NOT_HTTP
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text names an address instead
    return str(error) or type(error).__name__
