"""The clients for threads and asyncio: each opens streams on one server, and transcribes whole recordings."""

import asyncio
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy.typing as npt

from penstock_client import limits
from penstock_client.batched.blocking import EventLoopThread, event_loop_thread
from penstock_client.batched.engine import EngineStream, server_of
from penstock_client.batched.server import Server
from penstock_client.batched.server_offer import check_live, read_server_info
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_client.playback import Pacer, Recording, SegmentEnds, choose_request_ms, play
from penstock_client.stream import AsyncStream, Stream
from penstock_common.audio.tracks import MIX, Channel
from penstock_common.errors import StreamClosedError, StreamId
from penstock_common.options import StreamOptions, check_live_options, for_file, parameters_of
from penstock_common.results import Result
from penstock_common.server_info import ServerInfo
from penstock_common.transcript import Transcript

_S = TypeVar("_S", Stream, AsyncStream)


class ClientBase(Generic[_S]):
    """The part of a client without I/O, shared by `Client` and `AsyncClient`."""

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = limits.TIMEOUT_S,
        connection_options: ConnectionOptions | None = None,
        align: bool = True,
    ):
        self._endpoint = Endpoint(url, protocol, timeout_s, connection_options or ConnectionOptions())
        self.url = self._endpoint.url
        self._is_closed = False
        self._server = server_of(self._endpoint, align)
        self._streams: weakref.WeakSet[_S] = weakref.WeakSet()
        self._begin()

    def _begin(self) -> None:
        """Sets what only one kind of client has."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {self._endpoint.protocol}>"

    def _new_stream_id(self) -> StreamId:
        """A unique id. StreamClosedError after close."""
        stream_id = uuid.uuid4().hex
        if self._is_closed:
            raise StreamClosedError(stream_id, "the client is closed")
        return stream_id


class Client(ClientBase[Stream]):
    """A client of the Penstock server at `url`, the host:port of its gRPC or HTTP port. Carries any number of streams.

    Its streams share requests to the model `asr_batch`: over gRPC of one call, over HTTP one at a time. They fail if
    the server leaves a request unanswered for `timeout_s`. A stream connects with its first audio, so an absent server
    shows there. Use as a context manager, or call `close`; a client that is left open is closed when it and its streams
    are no longer referenced, or when the program ends. Raises ValueError for an invalid url, protocol or certificate
    file.

    Streams send whole chunks of the server's model. With `align=False`, or to a server that does not publish its
    chunks, all audio is sent at once.
    """

    def _begin(self) -> None:
        self._thread = event_loop_thread()
        # Also at the end of the program: a gRPC channel that is still open then never lets it end.
        self._close_once = weakref.finalize(self, close_all, self._streams, self._server, self._thread)

    def open_stream(self, options: StreamOptions | None = None) -> Stream:
        """A new stream.

        Options that the server rejects fail the stream with a StreamError in place of its first result, as a
        SpeakersNotServedError for speakers without a speaker model on the server.
        """
        stream_id = self._new_stream_id()
        if not self._thread.is_running:
            raise StreamClosedError(stream_id, "the client was made before this process was forked: make one here")
        stream = Stream(EngineStream(self._server, stream_id, parameters_of(options)), self._thread, self)
        self._streams.add(stream)
        return stream

    def server_info(self) -> ServerInfo:
        """The server's model, limits and decoders. Raises ServerUnreachableError and ServerReplyError."""
        return read_server_info(self._endpoint)

    def check_live(self, options: StreamOptions | None = None) -> None:
        """Raises FilesOnlyError for live audio with these options where the server has an offline model.

        Nothing where it does not say, or answer. OptionError for an option of whole files.
        """
        check_live_options(options)
        check_live(self._endpoint, options)

    def transcribe(
        self,
        audio: str | Path | npt.ArrayLike,
        *,
        request_ms: float | None = None,
        realtime: bool = False,
        options: StreamOptions | None = None,
        channel: Channel = MIX,
        on_progress: Callable[[Transcript], None] | None = None,
    ) -> Transcript:
        """Streams a file, or mono samples [n] at 16 kHz, and returns the complete transcript.

        Of a file with several channels, `channel` is transcribed: "mix", "left", "right" or a number from 1.
        Audio is sent in parts of `request_ms` (default: 100 with `realtime`, else 1000), of which the stream makes
        requests. With `realtime` it is sent at the pace of speech, which needs a live window where the model is an
        offline one (FilesOnlyError).
        `on_progress` receives the growing transcript after every new result. Raises ClientError, and ValueError for
        unsuitable arguments.
        """
        if realtime:
            self.check_live(options)
        recording = Recording(audio, choose_request_ms(request_ms, realtime), channel)

        def report(transcript: Transcript, results: Sequence[Result]) -> None:
            if on_progress is not None:
                on_progress(transcript)

        with self.open_stream(options if realtime else for_file(options)) as stream:
            stream.start_ms = round(1000 * recording.start_s)
            play(stream, recording, Pacer() if realtime else None, report, SegmentEnds())
            return stream.transcript

    def close(self) -> None:
        """Closes the remaining streams and the connection."""
        self._is_closed = True
        self._close_once()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_all(streams: Iterable[Stream], server: Server, thread: EventLoopThread) -> None:
    """Closes the streams and the connection to their server."""
    streams = list(streams)
    for stream in streams:  # all their ends are sent before waiting for the first
        stream.cancel()
    for stream in streams:
        stream.close()
    if thread.is_running:
        thread.finish(server.close())


class AsyncClient(ClientBase[AsyncStream]):
    """`Client` for asyncio: the same arguments. Use it in one event loop; its streams have no threads."""

    def open_stream(self, options: StreamOptions | None = None) -> AsyncStream:
        """A new stream, for `async with`; its errors are those of `Client.open_stream`."""
        stream = AsyncStream(EngineStream(self._server, self._new_stream_id(), parameters_of(options)))
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
        options: StreamOptions | None = None,
        channel: Channel = MIX,
        on_progress: Callable[[Transcript], None] | None = None,
    ) -> Transcript:
        """Streams a file, or mono samples [n] at 16 kHz, and returns the complete transcript.

        The arguments are those of `Client.transcribe`. A file is decoded in a thread, which does not block the loop.
        """
        if realtime:
            check_live_options(options)
            await asyncio.to_thread(check_live, self._endpoint, options)
        recording = await asyncio.to_thread(Recording, audio, choose_request_ms(request_ms, realtime), channel)
        report = on_progress or (lambda transcript: None)
        async with self.open_stream(options if realtime else for_file(options)) as stream:
            stream.start_ms = round(1000 * recording.start_s)
            await _play(stream, recording, Pacer() if realtime else None, report)
            return stream.transcript

    async def close(self) -> None:
        """Closes the remaining streams and the connection."""
        self._is_closed = True
        await asyncio.gather(*(stream.close() for stream in list(self._streams)))
        await self._server.close()

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
