"""The client for asyncio, with the streams, results and errors of `Client`."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy.typing as npt

from penstock_client.async_stream import AsyncStream
from penstock_client.audio.channels import MIX, Channel
from penstock_client.client import ClientBase
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_client.errors import StreamId
from penstock_client.options import StreamOptions, parameters_of
from penstock_client.playback import Pacer, Recording, choose_request_ms
from penstock_client.protocol import MODEL_NAME
from penstock_client.server_info import ServerInfo
from penstock_client.speakers.settings import of_file, speaker_settings
from penstock_client.speakers.transport import connect, speaking
from penstock_client.transcript import Transcript
from penstock_client.transport.async_base import AsyncConnection
from penstock_client.transport.model_config import read_server_info


class AsyncClient(ClientBase):
    """`Client` for asyncio: the same arguments. Use it in one event loop; its streams have no threads."""

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = 10.0,
        model: str = MODEL_NAME,
        connection_options: ConnectionOptions | None = None,
        connection: AsyncConnection | None = None,
        align: bool = True,
    ):
        endpoint = Endpoint(url, protocol, model, timeout_s, connection_options or ConnectionOptions())
        super().__init__(endpoint, align, connection is None)
        self._connection = connection or connect(endpoint, self._chunks)
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    def open_stream(self, stream_id: StreamId | None = None, options: StreamOptions | None = None) -> AsyncStream:
        """A new stream, for `async with`. Its id must not be in use on the server: that stream would be restarted.

        The default is a unique id. Raises ValueError for an id that Triton does not take. Options that the server
        rejects fail the stream with a StreamError in place of its first result. Speakers without a speaker model on the
        server are a SpeakersNotServedError of the first `send`.
        """
        stream_id = self._new_stream_id(stream_id)
        if (speakers := speaker_settings(options)) is None:
            transport = self._connection.open_transport(stream_id, self._timeout_s)
        else:
            transport = speaking(self._connection).open_transport(stream_id, self._timeout_s, speakers)
        stream = AsyncStream(stream_id, transport, parameters_of(options), self._chunks)
        self._streams.add(stream)
        return stream

    async def server_info(self) -> ServerInfo:
        """The same as `Client.server_info`. Runs in a thread, so it does not block the event loop."""
        return await asyncio.to_thread(read_server_info, self._endpoint)

    async def transcribe(
        self,
        audio: str | Path | npt.ArrayLike,
        *,
        request_ms: float | None = None,
        realtime: bool = False,
        stream_id: StreamId | None = None,
        options: StreamOptions | None = None,
        channel: Channel = MIX,
        on_progress: Callable[[Transcript], None] | None = None,
    ) -> Transcript:
        """Streams a file, or mono samples [n] at 16 kHz, and returns the complete transcript.

        The arguments are those of `Client.transcribe`. A file is decoded in a thread, which does not block the loop.
        """
        if realtime and self._server is not None:
            await asyncio.to_thread(self._server.check_live, options)
        recording = await asyncio.to_thread(Recording, audio, choose_request_ms(request_ms, realtime), channel)
        report = on_progress or (lambda transcript: None)
        async with self.open_stream(stream_id, options if realtime else of_file(options)) as stream:
            await _play(stream, recording, Pacer() if realtime else None, report)
            return stream.transcript

    async def close(self) -> None:
        """Closes the remaining streams and the connection."""
        self._is_closed = True
        await asyncio.gather(*(stream.close() for stream in list(self._streams)))
        await self._connection.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _play(
    stream: AsyncStream, recording: Recording, pacer: Pacer | None, report: Callable[[Transcript], None]
) -> None:
    """Streams a recording up to its final text; a pacer keeps real-time pace."""
    for block in recording:
        while pacer and (wait_s := pacer.remaining_s(block.end_samples)) > 0:
            if await stream.poll(wait_s):
                report(stream.transcript)
        send = stream.finish if block.is_end else stream.send
        await send(block.samples)
        if await stream.poll():
            report(stream.transcript)
    async for _ in stream:
        report(stream.transcript)
