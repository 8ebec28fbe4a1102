"""Between the thread that talks to the network and the one that uses the stream: results in order, then a failure.

Knows no network. Keeps count of the pieces that wait for their reply, and so of time limits and of the audio in
flight.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from penstock_client.errors import ClientError, ProtocolError, ReplyTimeoutError, StreamId, StreamNotOpenError
from penstock_client.protocol import SAMPLE_RATE_HZ, Piece, Result

MAX_UNANSWERED_PIECES = 64
MAX_UNANSWERED_SAMPLES = 60 * SAMPLE_RATE_HZ


class _Unanswered(NamedTuple):
    samples: int
    sent_s: float


class Mailbox:
    """The replies of one stream. Safe to use from any number of threads."""

    def __init__(self, stream_id: StreamId, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic):
        self._stream_id = stream_id
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock
        self._changed = threading.Condition()
        self._unanswered: deque[_Unanswered] = deque()
        self._results: deque[Result] = deque()
        self._failure: ClientError | None = None
        self._first_is_sent = self._last_is_sent = False
        self._has_replies = False
        self._sign_of_life_s = clock()

    @property
    def has_replies(self) -> bool:
        """True once the server has answered anything."""
        return self._has_replies

    @property
    def is_started(self) -> bool:
        """True once a piece was sent."""
        return self._first_is_sent

    @property
    def is_unfinished(self) -> bool:
        """True where the server may hold the stream open: a piece was sent, but not the last."""
        is_unknown = isinstance(self._failure, StreamNotOpenError)  # its id may be another stream's by now
        return self._first_is_sent and not self._last_is_sent and not is_unknown

    @property
    def is_complete(self) -> bool:
        """True once every piece up to the last has been answered, and every result taken."""
        with self._changed:
            return self._is_answered() and not self._results

    def announce(self, piece: Piece) -> None:
        """Counts a piece as sent. Blocks while too much audio is unanswered, except for the last piece.

        Raises the stream's failure, if there is one.
        """
        now = self._clock()
        with self._changed:
            self._wait_until(lambda: piece.is_last or self._has_room(piece.samples), math.inf)
            if self._failure:
                raise self._failure
            if not self._unanswered:
                self._sign_of_life_s = self._clock()
            self._unanswered.append(_Unanswered(piece.samples, now))
            self._first_is_sent = True
            self._last_is_sent |= piece.is_last

    def deliver(self, result: Result) -> None:
        """Hands over the reply to the oldest unanswered piece; after a failure it is dropped."""
        with self._changed:
            if self._failure:
                return
            if not self._unanswered:
                self._fail(ProtocolError(self._stream_id, "the server sent a reply that nothing was asked for"))
                return
            self._sign_of_life_s = self._clock()
            sent_s = self._unanswered.popleft().sent_s
            self._results.append(replace(result, round_trip_s=self._sign_of_life_s - sent_s))
            self._has_replies = True
            self._changed.notify_all()

    def fail(self, error: ClientError) -> None:
        """Ends the stream with an error, unless it is all answered or has failed before."""
        with self._changed:
            self._fail(error)

    def take(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s`, or if the stream is complete.

        `wait_s` None waits as long as it takes. Raises the stream's failure after the results that came before it.
        """
        with self._changed:
            self._wait_until(lambda: self._results or self._is_answered(), math.inf if wait_s is None else wait_s)
            if self._results:
                return self._results.popleft()
            if self._failure:
                raise self._failure
            return None

    def _silence(self) -> str:
        return f"no reply from the server at {self._url} for {self._timeout_s:g} s"

    def _is_answered(self) -> bool:
        return self._last_is_sent and not self._unanswered

    def _has_room(self, samples: int) -> bool:
        if not self._unanswered:
            return True
        in_flight = sum(unanswered.samples for unanswered in self._unanswered)
        return len(self._unanswered) < MAX_UNANSWERED_PIECES and in_flight + samples <= MAX_UNANSWERED_SAMPLES

    def _fail(self, error: ClientError) -> None:
        if not self._failure and not self._is_answered():
            self._failure = error
            self._changed.notify_all()

    def _wait_until(self, is_met: Callable[[], object], wait_s: float) -> None:
        """Returns when `is_met`, at a failure, or after `wait_s`; too long a silence of the server is a failure."""
        deadline_s = self._clock() + wait_s
        while not is_met() and not self._failure:
            now = self._clock()
            patience_s = self._sign_of_life_s + self._timeout_s - now if self._unanswered else math.inf
            if patience_s <= 0:
                self._fail(ReplyTimeoutError(self._stream_id, self._silence()))
            elif deadline_s <= now:
                return
            else:
                limit_s = min(deadline_s - now, patience_s)
                self._changed.wait(None if limit_s == math.inf else limit_s)
