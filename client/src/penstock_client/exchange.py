"""One stream's exchange with the server, without any I/O: pieces that are to go out, results that came in, a failure.

Knows no network, no threads and no event loop: `Mailbox` and `AsyncMailbox` add the waiting, each in its own way.
Keeps count of the pieces that wait for their reply, and so of time limits and of the audio in flight.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    StreamId,
    StreamNotOpenError,
)
from penstock_client.protocol import END_PIECE, SAMPLE_RATE_HZ, Piece, Result
from penstock_client.transport import FAREWELL_S

MAX_UNANSWERED_PIECES = 64
MAX_UNANSWERED_SAMPLES = 60 * SAMPLE_RATE_HZ


class _Unanswered(NamedTuple):
    samples: int
    sent_s: float


class Exchange:
    """Both directions of one stream. Not safe to use from several threads."""

    def __init__(self, stream_id: StreamId, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic):
        self.failure: ClientError | None = None
        """What ended the stream before its time; the first failure stays."""
        self._stream_id = stream_id
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock
        self._outgoing: deque[Piece] = deque()
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_samples = 0
        self._results: deque[Result] = deque()
        self._last_is_announced = self._first_has_departed = self._last_has_departed = False
        self._is_connected = self._has_replies = False
        self._left_at_s: float | None = None
        self._sign_of_life_s = clock()

    @property
    def is_complete(self) -> bool:
        """True once every piece up to the last has been answered, and every result taken."""
        return self._is_answered() and not self._results

    @property
    def has_news(self) -> bool:
        """True where `take` has something to say."""
        return bool(self._results) or self._is_answered() or self.failure is not None

    @property
    def has_outgoing(self) -> bool:
        """True where a piece is to go out now."""
        return bool(self._outgoing)

    @property
    def is_over(self) -> bool:
        """True once no piece will go out any more."""
        return not self._outgoing and (self._has_left or self._last_has_departed)

    @property
    def is_open_on_server(self) -> bool:
        """True where the server may hold the stream open: its first piece went out, but not its last."""
        is_unknown = isinstance(self.failure, StreamNotOpenError)  # its id may be another stream's by now
        has_begun = self._is_connected and self._first_has_departed
        return has_begun and not self._last_has_departed and not is_unknown

    @property
    def is_untouched(self) -> bool:
        """True as long as the server cannot have got anything of this stream."""
        return not (self._is_connected and self._first_has_departed)

    @property
    def farewell_s(self) -> float:
        """For how long closing may still wait for the server to take the stream's end, since the user has left."""
        if self.is_untouched:
            return 0.0
        return FAREWELL_S if self._left_at_s is None else max(0.0, self._left_at_s + FAREWELL_S - self._clock())

    def now_s(self) -> float:
        """The time by the exchange's clock."""
        return self._clock()

    def has_room(self, piece: Piece) -> bool:
        """True where the piece may be announced: not too much is unanswered, or it is the last."""
        if not self._unanswered or piece.is_last:
            return True
        samples = self._unanswered_samples + piece.samples
        return len(self._unanswered) < MAX_UNANSWERED_PIECES and samples <= MAX_UNANSWERED_SAMPLES

    def announce(self, piece: Piece, since_s: float) -> None:
        """Lets a piece go out that its user sent at `since_s`. Raises the stream's failure, if there is one."""
        if self.failure:
            raise self.failure
        if not self._unanswered:
            self._sign_of_life_s = self._clock()
        self._unanswered.append(_Unanswered(piece.samples, since_s))
        self._unanswered_samples += piece.samples
        self._outgoing.append(piece)
        self._last_is_announced |= piece.is_last

    def note_connection(self) -> None:
        """There is a connection: from here on a piece that goes out may be heard, and is never sent again.

        One that departed before there was a connection goes out now; its user may have left meanwhile.
        """
        if not self._is_connected:
            self._sign_of_life_s = self._clock()
        self._is_connected = True
        if self._has_left and self.is_open_on_server and not self._outgoing:
            self._outgoing.append(END_PIECE)

    def next_piece(self) -> Piece | None:
        """The piece to put on the wire now, or None. It counts as gone out, and is not given out again."""
        if not self._outgoing:
            return None
        piece = self._outgoing.popleft()
        self._first_has_departed |= piece.is_first
        self._last_has_departed |= piece.is_last
        return piece

    def deliver(self, result: Result) -> None:
        """Takes in the reply to the oldest unanswered piece; after a failure it is dropped."""
        if self.failure:
            return
        if not self._unanswered:
            self.fail(ProtocolError(self._stream_id, "the server sent a reply that nothing was asked for"))
            return
        self._sign_of_life_s = self._clock()
        samples, sent_s = self._unanswered.popleft()
        self._unanswered_samples -= samples
        self._results.append(result.after(self._sign_of_life_s - sent_s))
        self._has_replies = True

    def take(self) -> Result | None:
        """The next result, or None. Raises the stream's failure after the results that came before it."""
        if self._results:
            return self._results.popleft()
        if self.failure:
            raise self.failure
        return None

    def fail(self, error: ClientError) -> None:
        """Ends the stream with an error, unless it is all answered or has failed before; what is left stays here."""
        if not self.failure and not self._is_answered():
            self.failure = error
            self._outgoing.clear()

    def lose(self, reason: str) -> None:
        """Ends the stream because the network did."""
        if self._has_replies:
            self.fail(ConnectionLostError(self._stream_id, f"lost the server at {self._url}: {reason}"))
        else:
            self.fail(ServerUnreachableError(self._url, reason))

    def end(self) -> None:
        """Ends the stream because the network has no more to say, though there is something unanswered."""
        self.fail(ConnectionLostError(self._stream_id, f"the server at {self._url} ended the stream"))

    def time_out(self) -> None:
        """Ends the stream because the server has been silent for too long."""
        self.fail(self._silence())

    def leave(self) -> None:
        """The user goes. What has not gone out is dropped; where the server may hold the stream open, its end goes out.

        A refused piece leaves a stream open, and neither cancelling a call nor disconnecting frees its place in
        Triton, so only its end does.
        """
        if self._has_left:
            return
        self._left_at_s = self._clock()
        self.fail(StreamClosedError(self._stream_id, "the stream was closed before its last result"))
        self._outgoing.clear()
        if self.is_open_on_server:
            self._outgoing.append(END_PIECE)

    def seconds_to_wait(self, deadline_s: float) -> float:
        """How long nothing but a change of this exchange matters; 0 at the deadline or at a failure.

        Too long a silence of the server is made a failure here.
        """
        now_s = self._clock()
        patience_s = self._sign_of_life_s + self._timeout_s - now_s if self._unanswered else math.inf
        if patience_s <= 0:
            self.time_out()
        return 0.0 if self.failure else max(0.0, min(deadline_s - now_s, patience_s))

    def _silence(self) -> ClientError:
        if not self._is_connected:
            return ServerUnreachableError(self._url, f"no connection for {self._timeout_s:g} s")
        return ReplyTimeoutError(self._stream_id, f"no reply from the server at {self._url} for {self._timeout_s:g} s")

    @property
    def _has_left(self) -> bool:
        return self._left_at_s is not None

    def _is_answered(self) -> bool:
        return self._last_is_announced and not self._unanswered
