"""Client of a Penstock speech recognition server: streams audio and receives words while it is sent.

The public names are imported when first used, so that the command starts quickly.
"""

import importlib
from typing import TYPE_CHECKING

from penstock_client.version import __version__ as __version__

if TYPE_CHECKING:
    from penstock_client.audio.audio_pipe import AudioPipe as AudioPipe
    from penstock_client.audio.microphone import Microphone as Microphone
    from penstock_client.batched.client import BatchedClient as BatchedClient
    from penstock_client.batched.rows import StreamResult as StreamResult
    from penstock_client.batched.stream import BatchedStream as BatchedStream
    from penstock_client.client import AsyncClient as AsyncClient
    from penstock_client.client import Client as Client
    from penstock_client.connection import ConnectionOptions as ConnectionOptions
    from penstock_client.stream import AsyncStream as AsyncStream
    from penstock_client.stream import Stream as Stream
    from penstock_common.audio.pcm import RawFormat as RawFormat
    from penstock_common.audio.tracks import load_audio as load_audio
    from penstock_common.audio.tracks import read_audio as read_audio
    from penstock_common.errors import AudioError as AudioError
    from penstock_common.errors import ClientError as ClientError
    from penstock_common.errors import ConnectionLostError as ConnectionLostError
    from penstock_common.errors import FilesOnlyError as FilesOnlyError
    from penstock_common.errors import MicrophoneError as MicrophoneError
    from penstock_common.errors import OptionError as OptionError
    from penstock_common.errors import PackageError as PackageError
    from penstock_common.errors import ProtocolError as ProtocolError
    from penstock_common.errors import ReplyTimeoutError as ReplyTimeoutError
    from penstock_common.errors import ServerDrainingError as ServerDrainingError
    from penstock_common.errors import ServerFullError as ServerFullError
    from penstock_common.errors import ServerReplyError as ServerReplyError
    from penstock_common.errors import ServerUnreachableError as ServerUnreachableError
    from penstock_common.errors import SpeakersNotServedError as SpeakersNotServedError
    from penstock_common.errors import StreamClosedError as StreamClosedError
    from penstock_common.errors import StreamError as StreamError
    from penstock_common.errors import StreamId as StreamId
    from penstock_common.errors import StreamNotOpenError as StreamNotOpenError
    from penstock_common.options import StreamOptions as StreamOptions
    from penstock_common.results import Alternative as Alternative
    from penstock_common.results import Result as Result
    from penstock_common.results import Word as Word
    from penstock_common.samples import SAMPLE_RATE_HZ as SAMPLE_RATE_HZ
    from penstock_common.server_info import ServerInfo as ServerInfo
    from penstock_common.transcript import Segment as Segment
    from penstock_common.transcript import Transcript as Transcript
else:
    _PUBLIC = {
        "penstock_common.audio.tracks": ("load_audio", "read_audio"),
        "penstock_client.audio.audio_pipe": ("AudioPipe",),
        "penstock_client.batched.client": ("BatchedClient",),
        "penstock_client.batched.rows": ("StreamResult",),
        "penstock_client.batched.stream": ("BatchedStream",),
        "penstock_client.client": ("AsyncClient", "Client"),
        "penstock_client.connection": ("ConnectionOptions",),
        "penstock_common.errors": (
            "AudioError", "ClientError", "ConnectionLostError", "FilesOnlyError", "MicrophoneError", "OptionError",
            "PackageError", "ProtocolError", "ReplyTimeoutError", "ServerDrainingError", "ServerFullError",
            "ServerReplyError", "ServerUnreachableError", "SpeakersNotServedError", "StreamClosedError", "StreamError",
            "StreamId", "StreamNotOpenError",
        ),
        "penstock_client.audio.microphone": ("Microphone",),
        "penstock_common.options": ("StreamOptions",),
        "penstock_common.audio.pcm": ("RawFormat",),
        "penstock_common.results": ("Alternative", "Result", "Word"),
        "penstock_common.samples": ("SAMPLE_RATE_HZ",),
        "penstock_common.server_info": ("ServerInfo",),
        "penstock_client.stream": ("AsyncStream", "Stream"),
        "penstock_common.transcript": ("Segment", "Transcript"),
    }  # fmt: skip
    _HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

    __all__ = ["__version__", *_HOMES]

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'penstock_client' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted(__all__)
