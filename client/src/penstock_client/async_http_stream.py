"""Streams over HTTP for asyncio: one POST a piece, answered before the next, on connections kept alive by aiohttp.

aiohttp repeats a request that has met a dead connection only where its method is safe to repeat; POST is not.
"""

import asyncio
import os
import ssl
from types import SimpleNamespace

import aiohttp
from yarl import URL

from penstock_client.async_mailbox import AsyncMailbox
from penstock_client.async_transport import AsyncTaskTransport
from penstock_client.connection_options import retry_pauses_s
from penstock_client.endpoint import Endpoint
from penstock_client.errors import ClientError, StreamId
from penstock_client.http_wire import HEADER_LENGTH, NOT_HTTP, post_of, read_response, tls_context
from penstock_client.protocol import Piece, Result


class AsyncHttpConnection:
    """The way to one server's HTTP port. Its session is opened by the first stream, in that one's event loop."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tls = tls_context(endpoint)
        self._session: aiohttp.ClientSession | None = None

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "AsyncHttpStream":
        """See Connection."""
        if self._session is None:
            self._session = _open_session(self._tls)
        return AsyncHttpStream(self._endpoint, self._session, stream_id, timeout_s)

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()


class AsyncHttpStream(AsyncTaskTransport):
    """One stream as a row of POSTs."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession, stream_id: StreamId, timeout_s: float):
        super().__init__(stream_id, AsyncMailbox(stream_id, endpoint.url, timeout_s))
        self._endpoint = endpoint
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)

    async def _run(self) -> None:
        try:
            async for piece in self._mailbox.pieces():
                try:
                    self._mailbox.deliver(await self._post_with_retries(piece))
                except ClientError as error:
                    self._mailbox.fail(error)
        except asyncio.TimeoutError:
            self._mailbox.time_out()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
            self._mailbox.lose(_reason(error))

    async def _post_with_retries(self, piece: Piece) -> Result:
        """Tries again where no connection could be set up, and none of the stream's audio can be on the server."""
        for pause_s in retry_pauses_s(self._endpoint.options.connect_retry_s):
            try:
                return await self._post(piece)
            except aiohttp.ClientSSLError:  # another attempt meets the same certificate
                raise
            except aiohttp.ClientConnectorError:
                if not self._mailbox.is_untouched or await self._mailbox.rest(pause_s):
                    raise
        return await self._post(piece)

    async def _post(self, piece: Piece) -> Result:
        path, body, headers = post_of(self._endpoint, self._stream_id, piece)
        url = URL(f"{'https' if self._endpoint.is_secure else 'http'}://{self._endpoint.url}{path}", encoded=True)
        async with self._session.post(
            url,
            data=body,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
            trace_request_ctx=self._mailbox,
        ) as response:
            content = await response.read()
            header_length = response.headers.get(HEADER_LENGTH)
            return read_response(self._endpoint, self._stream_id, response.status, header_length, content)


def _open_session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A session without a limit of connections, that tells a request's mailbox when it has got one."""

    async def note_connection(session: aiohttp.ClientSession, context: SimpleNamespace, event: object) -> None:
        context.trace_request_ctx.note_connection()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(note_connection)
    trace.on_connection_reuseconn.append(note_connection)
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, trace_configs=[trace], cookie_jar=aiohttp.DummyCookieJar())


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):  # its parser's: the server's own are results or refusals
        return NOT_HTTP
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text names an address instead
    return str(error) or type(error).__name__
