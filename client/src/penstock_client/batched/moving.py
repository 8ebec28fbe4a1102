"""State of a stream on one server, and of its moves between servers."""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence

from penstock_client.alignment import ChunkGeometry
from penstock_client.batched.link import Arrival, Link
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import Part, Pushed, Receiver
from penstock_client.protocol import ResultOrder
from penstock_common.errors import ClientError, ProtocolError, StreamClosedError, StreamId
from penstock_common.options import Parameter

_MAX_FRUITLESS_MOVES = 3
"""Moves in a row without a new result; a stream that exceeds it may itself be what crashes its servers, so it ends. One
more for replies that cannot be read, whatever was answered between them."""


class OnServer:
    """A stream on its present server."""

    def __init__(self, link: Link, stream_id: int):
        self.link, self.stream_id = link, stream_id
        self.sent_samples = self.answered_samples = 0
        self.is_begun = self.is_ended = False
        """Whether its start, and whether its end was sent."""
        self.order = ResultOrder()

    def pushed(self, stream: Receiver, part: Part) -> Pushed:
        """The part on its way there."""
        self.sent_samples += part.samples
        self.is_begun = True
        self.is_ended |= part.is_end
        row = part.row(self.stream_id)
        return Pushed(stream, row, part.end_samples, self.link.now_s(), part.number, self)


class StreamMoves:
    """The moves of one stream: the one under way, and how many have brought nothing."""

    def __init__(self, stream_id: StreamId):
        self.are_under_way = False
        self.arrival: Arrival | None = None
        """On the server that it moves to."""
        self.backlog: deque[Part] = deque()
        """Parts that wait for those before them, while the stream moves."""
        self.replayed_samples = 0
        self.error: ClientError = StreamClosedError(stream_id, "the stream is on no server")
        """Why the server that it moves to has lost it."""
        self.may_lose_speakers = False
        """True while a move may take the stream to where it has no speakers."""
        self._fruitless = self._unreadable_replies = self._speaker_losses = 0

    def note_new_result(self) -> None:
        """The moves so far have brought something."""
        # Not `_unreadable_replies`: such a server may answer others in between.
        self._fruitless = self._speaker_losses = 0

    @property
    def keep_speakers(self) -> bool:
        """True while a move has to find a speaker model: none does after losses in a row, which the audio may cause."""
        return not self.may_lose_speakers and self._speaker_losses < _MAX_FRUITLESS_MOVES - 1

    def begin(self, parts: Sequence[Part]) -> int:
        """The stream is on another server, which receives these parts. Returns their samples."""
        # Fruitless until a result comes that the caller does not have.
        self._fruitless += 1
        self.backlog = deque(parts)
        samples = sum(part.samples for part in parts)
        self.replayed_samples += samples
        return samples

    def may_follow(self, error: ClientError) -> bool:
        """True if another move may help after this error."""
        self._unreadable_replies += error.code == ProtocolError.code
        self._speaker_losses += error.of_speakers
        return max(self._fruitless, self._unreadable_replies - 1) < _MAX_FRUITLESS_MOVES


def repeated(replay: Replay, geometry: ChunkGeometry | None) -> tuple[Mapping[str, Parameter], list[Part]]:
    """The parameters of a start on another server, and what that has to receive after it."""
    parts = replay.requests(geometry)
    if not parts:
        return replay.kept.parameters, []
    # The start goes alone, before any audio: a server that rejects it has cost nothing.
    return parts[0].parameters, [parts[0].again(parts[0].samples), *parts[1:]]


def reported(parts: Sequence[Part], samples: int) -> list[Part]:
    """Parts before the first one that ends a segment after more than `samples` samples."""
    return list(itertools.takewhile(lambda part: not part.is_final or part.end_samples <= samples, parts))


def begins_with(parts: Sequence[Part], first: Sequence[Part]) -> bool:
    """True if the first of the parts are these."""
    return [(part.number, part.samples) for part in parts[: len(first)]] == [
        (part.number, part.samples) for part in first
    ]
