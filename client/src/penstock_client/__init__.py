"""Client of a Penstock speech recognition server: streams audio and receives words while it is sent.

The public names are imported when first used, so that the command starts quickly.
"""

import importlib
from typing import TYPE_CHECKING

from penstock_client.version import __version__

if TYPE_CHECKING:
    from penstock_client.audio.audio_pipe import AudioPipe as AudioPipe
    from penstock_client.audio.microphone import Microphone as Microphone
    from penstock_client.audio.pcm import RawFormat as RawFormat
    from penstock_client.audio.tracks import load_audio as load_audio
    from penstock_client.audio.tracks import read_audio as read_audio
    from penstock_client.batched.client import BatchedClient as BatchedClient
    from penstock_client.batched.rows import StreamResult as StreamResult
    from penstock_client.batched.stream import BatchedStream as BatchedStream
    from penstock_client.client import AsyncClient as AsyncClient
    from penstock_client.client import Client as Client
    from penstock_client.connection import ConnectionOptions as ConnectionOptions
    from penstock_client.errors import AudioError as AudioError
    from penstock_client.errors import ClientError as ClientError
    from penstock_client.errors import ConnectionLostError as ConnectionLostError
    from penstock_client.errors import FilesOnlyError as FilesOnlyError
    from penstock_client.errors import MicrophoneError as MicrophoneError
    from penstock_client.errors import PackageError as PackageError
    from penstock_client.errors import ProtocolError as ProtocolError
    from penstock_client.errors import ReplyTimeoutError as ReplyTimeoutError
    from penstock_client.errors import ServerDrainingError as ServerDrainingError
    from penstock_client.errors import ServerFullError as ServerFullError
    from penstock_client.errors import ServerReplyError as ServerReplyError
    from penstock_client.errors import ServerUnreachableError as ServerUnreachableError
    from penstock_client.errors import SpeakersNotServedError as SpeakersNotServedError
    from penstock_client.errors import StreamClosedError as StreamClosedError
    from penstock_client.errors import StreamError as StreamError
    from penstock_client.errors import StreamId as StreamId
    from penstock_client.errors import StreamNotOpenError as StreamNotOpenError
    from penstock_client.options import StreamOptions as StreamOptions
    from penstock_client.protocol import SAMPLE_RATE_HZ as SAMPLE_RATE_HZ
    from penstock_client.protocol import Alternative as Alternative
    from penstock_client.protocol import Result as Result
    from penstock_client.protocol import Word as Word
    from penstock_client.server_info import ServerInfo as ServerInfo
    from penstock_client.stream import AsyncStream as AsyncStream
    from penstock_client.stream import Stream as Stream
    from penstock_client.transcript import Segment as Segment
    from penstock_client.transcript import Transcript as Transcript
    from penstock_client.transport.base import AsyncConnection as AsyncConnection
    from penstock_client.transport.base import Connection as Connection

_PUBLIC = {
    "audio.tracks": ("load_audio", "read_audio"),
    "audio.audio_pipe": ("AudioPipe",),
    "batched.client": ("BatchedClient",),
    "batched.rows": ("StreamResult",),
    "batched.stream": ("BatchedStream",),
    "client": ("AsyncClient", "Client"),
    "connection": ("ConnectionOptions",),
    "errors": (
        "AudioError", "ClientError", "ConnectionLostError", "FilesOnlyError", "MicrophoneError", "PackageError",
        "ProtocolError", "ReplyTimeoutError", "ServerDrainingError", "ServerFullError", "ServerReplyError",
        "ServerUnreachableError", "SpeakersNotServedError", "StreamClosedError", "StreamError", "StreamId",
        "StreamNotOpenError",
    ),
    "audio.microphone": ("Microphone",),
    "options": ("StreamOptions",),
    "audio.pcm": ("RawFormat",),
    "protocol": ("SAMPLE_RATE_HZ", "Alternative", "Result", "Word"),
    "server_info": ("ServerInfo",),
    "stream": ("AsyncStream", "Stream"),
    "transcript": ("Segment", "Transcript"),
    "transport.base": ("AsyncConnection", "Connection"),
}  # fmt: skip
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock_client' has no attribute {name!r}")
    return getattr(importlib.import_module(f"penstock_client.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
