"""Client of a Penstock speech recognition server: streams audio and receives words while it is sent."""

from penstock_client.async_client import AsyncClient
from penstock_client.async_stream import AsyncStream
from penstock_client.audio import read_audio
from penstock_client.client import Client
from penstock_client.connection import ConnectionOptions
from penstock_client.errors import (
    AudioError,
    ClientError,
    ConnectionLostError,
    MicrophoneError,
    ProtocolError,
    ReplyTimeoutError,
    ServerFullError,
    ServerUnreachableError,
    StreamClosedError,
    StreamError,
    StreamId,
    StreamNotOpenError,
)
from penstock_client.microphone import Microphone
from penstock_client.options import StreamOptions
from penstock_client.protocol import SAMPLE_RATE_HZ, Alternative, Result, Word
from penstock_client.stream import Stream
from penstock_client.transcript import Segment, Transcript
from penstock_client.transport.async_base import AsyncConnection
from penstock_client.transport.base import Connection
from penstock_client.version import __version__

__all__ = [
    "SAMPLE_RATE_HZ",
    "Alternative",
    "AsyncClient",
    "AsyncConnection",
    "AsyncStream",
    "AudioError",
    "Client",
    "ClientError",
    "Connection",
    "ConnectionLostError",
    "ConnectionOptions",
    "Microphone",
    "MicrophoneError",
    "ProtocolError",
    "ReplyTimeoutError",
    "Result",
    "Segment",
    "ServerFullError",
    "ServerUnreachableError",
    "Stream",
    "StreamClosedError",
    "StreamError",
    "StreamId",
    "StreamNotOpenError",
    "StreamOptions",
    "Transcript",
    "Word",
    "__version__",
    "read_audio",
]
