"""Streams over HTTP for asyncio: one POST per request, one at a time, on connections kept alive by aiohttp.

On a dead connection aiohttp repeats requests with an idempotent method only; POST is not.
"""

import asyncio
import os
import ssl
from types import SimpleNamespace

import aiohttp
from yarl import URL

from penstock_client.connection import Endpoint, retry_pauses_s
from penstock_client.errors import ClientError, ProtocolError, ServerUnreachableError, StreamId
from penstock_client.protocol import MAX_REPLY_BYTES, Request, Result
from penstock_client.transport.async_base import TaskTransport
from penstock_client.transport.http_wire import HEADER_LENGTH, NOT_HTTP, post_of, read_response, tls_context


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
