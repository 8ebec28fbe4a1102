"""AsyncClient: where a user of asyncio starts. The same server, streams and errors as with `Client`."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy.typing as npt

from penstock_client.async_stream import AsyncStream
from penstock_client.client_base import ClientBase
from penstock_client.connection_options import ConnectionOptions
from penstock_client.endpoint import Endpoint, ProtocolName
from penstock_client.errors import StreamId
from penstock_client.options import StreamOptions
from penstock_client.pacing import Pacer
from penstock_client.protocol import MODEL_NAME
from penstock_client.recording import Recording, chosen_chunk_ms
from penstock_client.transcript import Transcript
from penstock_client.transport import AsyncConnection


class AsyncClient(ClientBase):
    """`Client` for asyncio: see there. Made anywhere, used in one event loop; no stream has a thread of its own."""

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = 10.0,
        model: str = MODEL_NAME,
        connection_options: ConnectionOptions | None = None,
        connection: AsyncConnection | None = None,
    ):
        endpoint = Endpoint(url, protocol, model, timeout_s, connection_options or ConnectionOptions())
        super().__init__(endpoint)
        self._connection = connect(endpoint) if connection is None else connection
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    def open_stream(self, stream_id: StreamId | None = None, options: StreamOptions | None = None) -> AsyncStream:
        """A new stream, for `async with`. See `Client.open_stream`."""
        stream_id = self._new_stream_id(stream_id)
        transport = self._connection.open_transport(stream_id, self._timeout_s)
        stream = AsyncStream(stream_id, transport, self._parameters(options))
        self._streams.add(stream)
        return stream

    async def transcribe(
        self,
        audio: str | Path | npt.ArrayLike,
        *,
        chunk_ms: float | None = None,
        realtime: bool = False,
        stream_id: StreamId | None = None,
        options: StreamOptions | None = None,
        on_progress: Callable[[Transcript], None] | None = None,
    ) -> Transcript:
        """Streams a file, or mono samples [n] at 16 kHz, and returns the complete transcript.

        See `Client.transcribe`. A file is decoded in a thread, so that it does not hold up the event loop.
        """
        recording = await asyncio.to_thread(Recording, audio, chosen_chunk_ms(chunk_ms, realtime))
        report = on_progress or (lambda transcript: None)
        async with self.open_stream(stream_id, options) as stream:
            await _send_recording(stream, recording, Pacer() if realtime else None, report)
            async for _ in stream:
                report(stream.transcript)
            return stream.transcript

    async def close(self) -> None:
        """Closes the streams that are left, and the connection."""
        self._is_closed = True
        await asyncio.gather(*(stream.close() for stream in list(self._streams)))
        await self._connection.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(endpoint: Endpoint) -> AsyncConnection:
    """The connection for an endpoint; only its protocol's library is imported. ValueError for unusable certificates."""
    if endpoint.is_grpc:
        from penstock_client.async_grpc_stream import AsyncGrpcConnection

        return AsyncGrpcConnection(endpoint)
    from penstock_client.async_http_stream import AsyncHttpConnection

    return AsyncHttpConnection(endpoint)


async def _send_recording(
    stream: AsyncStream, recording: Recording, pacer: Pacer | None, report: Callable[[Transcript], None]
) -> None:
    """Sends all samples, the last chunk as the stream's end, and reports the results that come in meanwhile."""
    for chunk in recording:
        while pacer and (wait_s := pacer.remaining_s(chunk.end_samples)) > 0:
            if await stream.poll(wait_s):
                report(stream.transcript)
        send = stream.finish if chunk.is_last else stream.send
        await send(chunk.samples)
        if await stream.poll():
            report(stream.transcript)
