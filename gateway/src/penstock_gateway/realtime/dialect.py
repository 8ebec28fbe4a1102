"""Shared by the dialects: their actions, names of items, the audio of an event, the error for a retired shape."""

import binascii
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pybase64

from penstock_common.audio.pcm import RawFormat
from penstock_common.errors import shown
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.stream.options import LiveStreamOptions
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.validation import Fields, invalid

_FORM = re.compile("format|rate|encoding|channel", re.IGNORECASE)
"""In the names of fields that say how audio is read."""
ServerEvent = dict[str, Any]
"""An event for the client, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Configure:
    """From here on audio has this form and its stream these options. A stream that is open is finished first."""

    audio: RawFormat
    options: LiveStreamOptions
    has_header: bool = False
    """True if a WAV header before the audio replaces `audio`."""


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Audio of the stream; the first opens it."""

    data: bytes


class EndSegment:
    """Ends the segment after the audio so far; a Final with `forced` answers it."""


class Finish:
    """No more audio follows; the last Final has `is_last`."""


Action = ServerEvent | Configure | AppendAudio | EndSegment | Finish
"""Actions of a dialect for its connection: send an event, or act on the stream. The order counts."""
END_SEGMENT, FINISH = EndSegment(), Finish()


class Dialect:
    """The dialect of a connection: what both have."""

    accepted = ""
    """The client events, for errors."""

    def __init__(self, streams: ReplicaStreams, config: Config):
        self._streams, self._config = streams, config
        self._handlers: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Action]]] = {}
        """By the type of a client event."""
        self._rejected = Rejected()
        self._forced: deque[bool] = deque()
        """Ends of segments that are not answered yet: True discards the segment."""

    def receive(self, event: Mapping[str, Any]) -> Sequence[Action]:
        """Actions of a client event. GatewayError for a wrong one, which then has no effect."""
        kind = event.get("type")
        if (handler := self._handlers.get(str(kind))) is None:
            raise invalid("type", f"is {shown(kind)}; accepted: {self.accepted}")
        return handler(event)

    def _event(self, kind: str, **fields: Any) -> ServerEvent:
        return {"type": kind, "event_id": new_name("event"), **fields}


class SessionUpdate(Fields):
    """An update of the session, which the dialect validates."""

    session: dict[str, Any] | None = None


def new_name(kind: str) -> str:
    """A random name, such as `item_0f3a...`."""
    return f"{kind}_{secrets.token_hex(12)}"


class Rejected:
    """The rejection of a session: no audio is taken until another one is right, or it would be read wrongly.

    A later update leaves the session as it was, unless it is about the form of the audio.
    """

    def __init__(self) -> None:
        self._error: GatewayError | None = None

    @contextmanager
    def updating(self, is_later: bool) -> Iterator[None]:
        """Around an update of the session; `is_later`: of one that has taken audio or an update."""
        try:
            yield
            self._error = None
        except GatewayError as error:
            if not is_later or _FORM.search(error.param or ""):
                self._error = error.again()
            raise

    def check(self) -> None:
        """Before audio. GatewayError where the last update was rejected."""
        if self._error is not None:
            raise GatewayError(self._error.code, f"the session was rejected: {self._error.message}", self._error.param)


def read_audio(event: Mapping[str, Any]) -> bytes:
    """The bytes of `audio`, or a string in base64. 100 ms cost 1 us; the standard library's decoder takes 41 us."""
    text = event.get("audio")
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise invalid("audio", "is missing or no string; accepted: audio in base64")
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise GatewayError(GatewayCode.AUDIO_INVALID, "audio is not base64", "audio") from None


def retired(seen: str, owner: str, current: str) -> GatewayError:
    """The error for an event or field of a shape that is no longer served; `current`: what to send instead."""
    return GatewayError(GatewayCode.SHAPE_RETIRED, f"{seen} is {owner}, no longer served; accepted: {current}", seen)
