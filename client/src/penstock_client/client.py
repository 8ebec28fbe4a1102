"""Client: where a user starts. Opens streams on one server and transcribes whole recordings through one."""

import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock_client.audio import read_audio
from penstock_client.errors import StreamId
from penstock_client.options import StreamOptions
from penstock_client.pacing import Pacer
from penstock_client.protocol import MODEL_NAME, SAMPLE_RATE_HZ, as_samples, check_stream_id
from penstock_client.stream import Stream
from penstock_client.transcript import Transcript
from penstock_client.transport import Connection

ProtocolName = Literal["grpc", "http"]


class Client:
    """A Penstock server at `url`, host:port of its gRPC or HTTP port. Any number of streams at once.

    `timeout_s` is how long the server may leave audio unanswered before the stream fails. Nothing is sent before a
    stream's first audio, so an absent server shows then. Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = 10.0,
        model: str = MODEL_NAME,
        connection: Connection | None = None,
    ):
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s!r}, expected a positive number")
        self.url = url
        self._timeout_s = timeout_s
        self._connection = connect(url, protocol, model) if connection is None else connection
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()

    def open_stream(self, stream_id: StreamId | None = None, options: StreamOptions | None = None) -> Stream:
        """A new stream. Its id must not be in use on the server: that stream would be restarted.

        Without an id it gets a unique one. Raises ValueError for an id that Triton does not take. Options that the
        server refuses fail the stream with a StreamError in place of its first result.
        """
        stream_id = uuid.uuid4().hex if stream_id is None else check_stream_id(stream_id)
        transport = self._connection.open_transport(stream_id, self._timeout_s)
        stream = Stream(stream_id, transport, options.parameters() if options else None)
        self._streams.add(stream)
        return stream

    def transcribe(
        self,
        audio: str | Path | npt.ArrayLike,
        *,
        chunk_ms: float = 100,
        realtime: bool = False,
        stream_id: StreamId | None = None,
        options: StreamOptions | None = None,
        on_progress: Callable[[Transcript], None] | None = None,
    ) -> Transcript:
        """Streams a file, or mono samples [n] at 16 kHz, and returns the complete transcript.

        Sends `chunk_ms` of audio at a time, with `realtime` at the pace at which it was spoken. `on_progress` gets the
        growing transcript after every new result. Raises ClientError, and ValueError for unsuitable arguments.
        """
        chunk_samples = round(chunk_ms * SAMPLE_RATE_HZ / 1000)
        if chunk_samples < 1:
            raise ValueError(f"chunk_ms is {chunk_ms!r}, expected at least one sample")
        samples = read_audio(audio) if isinstance(audio, str | Path) else as_samples(audio)
        report = on_progress or (lambda transcript: None)
        with self.open_stream(stream_id, options) as stream:
            _send_recording(stream, samples, chunk_samples, Pacer() if realtime else None, report)
            for _ in stream:
                report(stream.transcript)
            return stream.transcript

    def close(self) -> None:
        """Closes the streams that are left, and the connection."""
        for stream in list(self._streams):
            stream.close()
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(url: str, protocol: ProtocolName, model: str) -> Connection:
    """The connection for a protocol; only that protocol's library is imported. ValueError for a bad url."""
    host, _, port = url.rpartition(":")
    if not host or "/" in url or not port.isascii() or not port.isdigit():
        raise ValueError(f"url is {url!r}, expected host:port, for example localhost:8001")
    if protocol == "grpc":
        from penstock_client.grpc_stream import GrpcConnection

        return GrpcConnection(url, model)
    if protocol == "http":
        from penstock_client.http_stream import HttpConnection

        return HttpConnection(url, model)
    raise ValueError(f"protocol is {protocol!r}, expected 'grpc' or 'http'")


def _send_recording(
    stream: Stream,
    samples: npt.NDArray[np.float32],
    chunk_samples: int,
    pacer: Pacer | None,
    report: Callable[[Transcript], None],
) -> None:
    """Sends all samples, the last chunk as the stream's end, and reports the results that come in meanwhile."""
    ends = [*range(chunk_samples, samples.size, chunk_samples), samples.size]
    for start, end in zip([0, *ends], ends, strict=False):
        if pacer:
            _report_until(stream, lambda end=end: pacer.remaining_s(end), report)
        if end == samples.size:
            stream.finish(samples[start:end])
        else:
            stream.send(samples[start:end])
        if stream.poll():
            report(stream.transcript)


def _report_until(stream: Stream, remaining_s: Callable[[], float], report: Callable[[Transcript], None]) -> None:
    """Reports results as they arrive, until no time remains."""
    while (wait_s := remaining_s()) > 0:
        if stream.poll(wait_s):
            report(stream.transcript)
