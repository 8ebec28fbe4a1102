"""Client: where a user starts. Opens streams on one server and transcribes whole recordings through one."""

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy.typing as npt

from penstock_client.client_base import ClientBase
from penstock_client.connection_options import ConnectionOptions
from penstock_client.dictation import play
from penstock_client.endpoint import Endpoint, ProtocolName
from penstock_client.errors import StreamId
from penstock_client.options import StreamOptions
from penstock_client.pacing import Pacer
from penstock_client.protocol import MODEL_NAME, Result
from penstock_client.recording import Recording, chosen_chunk_ms
from penstock_client.segment_ends import SegmentEnds
from penstock_client.stream import Stream
from penstock_client.transcript import Transcript
from penstock_client.transport import Connection


class Client(ClientBase):
    """A Penstock server at `url`, host:port of its gRPC or HTTP port. Any number of streams at once.

    `timeout_s` is how long the server may leave audio unanswered before the stream fails. Nothing is sent before a
    stream's first audio, so an absent server shows then. A connection that cannot be set up is tried again for a
    moment; audio is never sent again (see `ConnectionOptions`). Use as a context manager, or call `close`. Raises
    ValueError for a bad url, protocol or certificate file.
    """

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = 10.0,
        model: str = MODEL_NAME,
        connection_options: ConnectionOptions | None = None,
        connection: Connection | None = None,
    ):
        endpoint = Endpoint(url, protocol, model, timeout_s, connection_options or ConnectionOptions())
        super().__init__(endpoint)
        self._connection = connect(endpoint) if connection is None else connection
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    def open_stream(self, stream_id: StreamId | None = None, options: StreamOptions | None = None) -> Stream:
        """A new stream. Its id must not be in use on the server: that stream would be restarted.

        Without an id it gets a unique one. Raises ValueError for an id that Triton does not take. Options that the
        server refuses fail the stream with a StreamError in place of its first result.
        """
        stream_id = self._new_stream_id(stream_id)
        transport = self._connection.open_transport(stream_id, self._timeout_s)
        stream = Stream(stream_id, transport, self._parameters(options))
        self._streams.add(stream)
        return stream

    def transcribe(
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

        Sends `chunk_ms` of audio at a time (100 in real time, else 1000), with `realtime` at the pace at which it was
        spoken. `on_progress` gets the growing transcript after every new result. Raises ClientError, and ValueError
        for unsuitable arguments.
        """
        recording = Recording(audio, chosen_chunk_ms(chunk_ms, realtime))

        def report(transcript: Transcript, results: Sequence[Result]) -> None:
            if on_progress is not None:
                on_progress(transcript)

        with self.open_stream(stream_id, options) as stream:
            play(stream, recording, Pacer() if realtime else None, report, SegmentEnds())
            return stream.transcript

    def close(self) -> None:
        """Closes the streams that are left, and the connection."""
        self._is_closed = True
        streams = list(self._streams)
        for stream in streams:  # all their ends go out before the first is waited for
            stream.cancel()
        for stream in streams:
            stream.close()
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(endpoint: Endpoint) -> Connection:
    """The connection for an endpoint; only its protocol's library is imported. ValueError for unusable certificates."""
    if endpoint.is_grpc:
        from penstock_client.grpc_stream import GrpcConnection

        return GrpcConnection(endpoint)
    from penstock_client.http_stream import HttpConnection

    return HttpConnection(endpoint)
