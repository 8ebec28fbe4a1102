"""An exchange between the task that talks to the network and those that use the stream. Knows no network."""

import math
from collections.abc import AsyncIterator, Callable

from penstock_client.async_signal import AsyncSignal
from penstock_client.errors import ClientError, StreamId
from penstock_client.exchange import Exchange
from penstock_client.protocol import Piece, Result


class AsyncMailbox:
    """An `Exchange` that waits without holding up its event loop. For the tasks of one event loop."""

    def __init__(self, stream_id: StreamId, url: str, timeout_s: float):
        self._exchange = Exchange(stream_id, url, timeout_s)
        self._news = AsyncSignal()
        """For those that use the stream."""
        self._departures = AsyncSignal()
        """For the task that talks to the network: replies are no news to it."""

    @property
    def is_complete(self) -> bool:
        """See Exchange."""
        return self._exchange.is_complete

    @property
    def is_over(self) -> bool:
        """See Exchange."""
        return self._exchange.is_over

    @property
    def is_untouched(self) -> bool:
        """See Exchange."""
        return self._exchange.is_untouched

    @property
    def farewell_s(self) -> float:
        """See Exchange."""
        return self._exchange.farewell_s

    async def announce(self, piece: Piece) -> None:
        """Lets a piece go out. Waits while too much audio is unanswered, except for the last piece.

        Raises the stream's failure, if there is one.
        """
        since_s = self._exchange.now_s()
        if not self._exchange.has_room(piece):
            await self._wait_until(lambda: self._exchange.has_room(piece), math.inf)
        self._exchange.announce(piece, since_s)
        self._notify()

    async def take(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s`, or if the stream is complete.

        `wait_s` None waits as long as it takes. Raises the stream's failure after the results that came before it.
        """
        if not self._exchange.has_news:
            await self._wait_until(lambda: self._exchange.has_news, math.inf if wait_s is None else wait_s)
        return self._exchange.take()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Each piece once it is to go out, until no more will."""
        while not self._exchange.is_over:
            if (piece := self._exchange.next_piece()) is not None:
                yield piece
            else:
                await self._departures.wait(math.inf)

    async def rest(self, pause_s: float) -> bool:
        """Waits before the network is tried again; returns at once with True when no piece will go out any more."""
        deadline_s = self._exchange.now_s() + pause_s
        while not self._exchange.is_over and (limit_s := deadline_s - self._exchange.now_s()) > 0:
            await self._departures.wait(limit_s)
        return self._exchange.is_over

    def note_connection(self) -> None:
        """See Exchange."""
        self._exchange.note_connection()

    def deliver(self, result: Result) -> None:
        """See Exchange."""
        self._exchange.deliver(result)
        self._news.give()

    def fail(self, error: ClientError) -> None:
        """See Exchange."""
        self._exchange.fail(error)
        self._notify()

    def lose(self, reason: str) -> None:
        """See Exchange."""
        self._exchange.lose(reason)
        self._notify()

    def time_out(self) -> None:
        """See Exchange."""
        self._exchange.time_out()
        self._notify()

    def end(self) -> None:
        """See Exchange."""
        self._exchange.end()
        self._notify()

    def leave(self) -> None:
        """See Exchange."""
        self._exchange.leave()
        self._notify()

    async def _wait_until(self, is_met: Callable[[], bool], wait_s: float) -> None:
        """Returns when `is_met`, at a failure, or after `wait_s`."""
        deadline_s = self._exchange.now_s() + wait_s
        while not is_met() and (limit_s := self._exchange.seconds_to_wait(deadline_s)) > 0:
            await self._news.wait(limit_s)

    def _notify(self) -> None:
        self._news.give()
        self._departures.give()
