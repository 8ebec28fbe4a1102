"""An exchange between the thread that talks to the network and those that use the stream. Knows no network."""

import math
import threading
import time
from collections.abc import Callable, Iterator

from penstock_client.errors import ClientError, StreamId
from penstock_client.exchange import Exchange
from penstock_client.protocol import Piece, Result


class Mailbox:
    """An `Exchange` that waits. Safe to use from any number of threads."""

    def __init__(self, stream_id: StreamId, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic):
        self._exchange = Exchange(stream_id, url, timeout_s, clock)
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        """For those that use the stream."""
        self._departures = threading.Condition(self._lock)
        """For the thread that talks to the network: replies are no news to it."""

    @property
    def is_complete(self) -> bool:
        """See Exchange."""
        with self._lock:
            return self._exchange.is_complete

    @property
    def is_over(self) -> bool:
        """See Exchange."""
        with self._lock:
            return self._exchange.is_over

    @property
    def is_untouched(self) -> bool:
        """See Exchange."""
        with self._lock:
            return self._exchange.is_untouched

    @property
    def farewell_s(self) -> float:
        """See Exchange."""
        with self._lock:
            return self._exchange.farewell_s

    def announce(self, piece: Piece) -> None:
        """Lets a piece go out. Blocks while too much audio is unanswered, except for the last piece.

        Raises the stream's failure, if there is one.
        """
        since_s = self._exchange.now_s()
        with self._lock:
            if not self._exchange.has_room(piece):
                self._wait_until(lambda: self._exchange.has_room(piece), math.inf)
            self._exchange.announce(piece, since_s)
            self._notify()

    def take(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s`, or if the stream is complete.

        `wait_s` None waits as long as it takes. Raises the stream's failure after the results that came before it.
        """
        with self._lock:
            if not self._exchange.has_news:
                self._wait_until(lambda: self._exchange.has_news, math.inf if wait_s is None else wait_s)
            return self._exchange.take()

    def has_more(self) -> bool:
        """True once there is a piece to put on the wire, False once there never will be. Waits for either."""
        with self._lock:
            self._departures.wait_for(lambda: self._exchange.has_outgoing or self._exchange.is_over)
            return self._exchange.has_outgoing

    def next_piece(self) -> Piece | None:
        """See Exchange."""
        with self._lock:
            return self._exchange.next_piece()

    def pieces(self) -> Iterator[Piece]:
        """Each piece once it is to go out, until no more will."""
        while self.has_more():
            if (piece := self.next_piece()) is not None:  # it may have been withdrawn
                yield piece

    def rest(self, pause_s: float) -> bool:
        """Waits before the network is tried again; returns at once with True when no piece will go out any more."""
        with self._lock:
            return self._departures.wait_for(lambda: self._exchange.is_over, pause_s)

    def note_connection(self) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.note_connection()

    def deliver(self, result: Result) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.deliver(result)
            self._news.notify_all()

    def fail(self, error: ClientError) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.fail(error)
            self._notify()

    def lose(self, reason: str) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.lose(reason)
            self._notify()

    def time_out(self) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.time_out()
            self._notify()

    def end(self) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.end()
            self._notify()

    def leave(self) -> None:
        """See Exchange."""
        with self._lock:
            self._exchange.leave()
            self._notify()

    def _wait_until(self, is_met: Callable[[], bool], wait_s: float) -> None:
        """Returns when `is_met`, at a failure, or after `wait_s`."""
        deadline_s = self._exchange.now_s() + wait_s
        while not is_met() and (limit_s := self._exchange.seconds_to_wait(deadline_s)) > 0:
            self._news.wait(None if limit_s == math.inf else limit_s)

    def _notify(self) -> None:
        self._news.notify_all()
        self._departures.notify_all()
