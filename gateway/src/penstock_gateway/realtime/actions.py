"""What a dialect asks its connection to do: send an event, or act on the stream. The order counts."""

from dataclasses import dataclass
from typing import Any

from penstock_client.pcm import RawFormat
from penstock_gateway.stream.live_stream import StreamOptions

ServerEvent = dict[str, Any]
"""An event for the client, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Configure:
    """From here on audio has this form and its stream these options. A stream that is open is finished first."""

    audio: RawFormat
    options: StreamOptions
    has_header: bool = False
    """Whether a WAV header in front of the audio replaces `audio`."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Audio of the stream; the first opens it."""

    data: bytes


class EndSegment:
    """Ends the segment behind the audio so far; a Final with `forced` answers it."""


class Finish:
    """No more audio follows; the last Final has `is_last`."""


Action = ServerEvent | Configure | Audio | EndSegment | Finish
END_SEGMENT, FINISH = EndSegment(), Finish()
