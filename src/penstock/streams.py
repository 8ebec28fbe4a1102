"""StreamTable: which stream has which slot. Opens, looks up, closes and expires; knows nothing of audio or models."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import StreamError, StreamErrorKind
from penstock.slot_ledger import SlotLedger

_REMEMBERED_ENDS = 4096
_EXPIRED_GRACE_S = 0.5
"""An expired stream's requests have had the idle limit to come out. Those that Triton dropped between two members,
because their client's connection went, never will."""
_LOST = "was lost by a later stage"


def slot_count(max_streams: int) -> int:
    """Slots that a table for `max_streams` live streams needs: one in eight more, and at least two."""
    return max_streams + max(2, max_streams // 8)


class Lease(NamedTuple):
    """A stream's right to a slot."""

    slot: int
    generation: int
    """Counts up with every opening, so that a late request of an earlier stream is told from the present one's."""


NO_LEASE = Lease(-1, 0)
"""Of nobody: no stage has such a slot."""


@dataclass
class _Stream:
    lease: Lease
    last_request_s: float


class StreamTable:
    """id -> slot for at most `max_streams` live streams.

    There are a few more slots than streams, so that a stream that ends or is started again does not have to wait for
    its last requests to settle. Streams without a request for `idle_limit_s` are expired as soon as anybody asks the
    table for anything. A closed stream's slot is free once the ledger has settled all its requests, or after another
    `idle_limit_s`; an expired one's half a second later at most. A request that comes out later still is refused by the
    later stages where it meets the slot's new stream (`slot_guard.py`). A stream that a later stage has refused or lost
    is closed as soon as anybody wants a slot.
    """

    def __init__(
        self,
        max_streams: int,
        ledger: SlotLedger,
        idle_limit_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ):
        slots = slot_count(max_streams)
        self.max_streams = max_streams
        self.slots = slots
        self.idle_limit_s = idle_limit_s
        self._ledger = ledger
        self._clock = clock
        self._streams: OrderedDict[Hashable, _Stream] = OrderedDict()  # longest silent first
        self._free = list(range(slots - 1, -1, -1))
        self._closing: dict[Lease, float] = {}  # when its slot is freed whatever the ledger says
        self._handed_on = [0] * slots  # requests of the slot's latest stream
        self._ends: OrderedDict[Hashable, str] = OrderedDict()
        self._generation = time.time_ns()  # above those of an earlier table on the same ledger
        self.started_streams = 0
        """Streams that were given a slot, since the table was made."""
        self.expired_streams = 0
        """Those of them that were expired."""
        self.refused_starts = 0
        """Streams that found no slot."""

    @property
    def live_streams(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    @property
    def ended_streams(self) -> int:
        """Streams that ended in another way than by expiry."""
        return self.started_streams - self.expired_streams - self.live_streams

    def count_free(self) -> int:
        """Streams that could start now; expires and frees first whatever is due."""
        now = self._clock()
        self._expire(now)
        self._close_lost(now)
        self._reclaim(now)
        return min(self.max_streams - len(self._streams), len(self._free))

    def open(self, stream_id: Hashable) -> Lease:
        """Gives a new stream a slot; a live stream of that id is closed first.

        Raises StreamError UNAVAILABLE where `max_streams` others are live.
        """
        now = self._clock()
        self._expire(now)
        if stream_id in self._streams:
            self._close(stream_id, now, "was started again")
        self._close_lost(now)
        self._reclaim(now)
        if len(self._streams) >= self.max_streams or not self._free:
            self.refused_starts += 1
            raise StreamError(
                StreamErrorKind.UNAVAILABLE,
                f"stream {stream_id!r} refused: all {self.max_streams} stream slots are taken; try again later",
            )
        self._ends.pop(stream_id, None)
        self._generation += 1
        lease = Lease(self._free.pop(), self._generation)
        self._handed_on[lease.slot] = 0
        self._streams[stream_id] = _Stream(lease, now)
        self.started_streams += 1
        return lease

    def look_up(self, stream_id: Hashable) -> Lease:
        """The live stream of that id; StreamError NOT_FOUND says why there is none."""
        now = self._clock()
        self._expire(now)
        stream = self._streams.get(stream_id)
        if stream is None:
            why = self._ends.get(stream_id, "was never started or has ended")
            raise StreamError(
                StreamErrorKind.NOT_FOUND, f"stream {stream_id!r} is not open: it {why}; start it with START"
            )
        if self._ledger.failed_generation(stream.lease.slot) >= stream.lease.generation:
            self._close(stream_id, now, _LOST)
            raise StreamError(
                StreamErrorKind.INTERNAL,
                f"stream {stream_id!r} was lost by a later stage of the server; start it again",
            )
        stream.last_request_s = now
        self._streams.move_to_end(stream_id)
        return stream.lease

    def hand_on(self, lease: Lease) -> None:
        """Notes that one request of the stream goes to the later stages, which will settle it."""
        self._handed_on[lease.slot] += 1

    def close(self, stream_id: Hashable, why: str = "has ended") -> None:
        """Ends a live stream; does nothing where there is none."""
        if stream_id in self._streams:
            self._close(stream_id, self._clock(), why)

    def _close(self, stream_id: Hashable, now: float, why: str, most_s: float = float("inf")) -> None:
        """most_s: how long its slot may wait for requests on their way, the idle limit at most."""
        self._closing[self._streams.pop(stream_id).lease] = now + min(self.idle_limit_s, most_s)
        self._ends[stream_id] = why
        if len(self._ends) > _REMEMBERED_ENDS:
            self._ends.popitem(last=False)

    def _expire(self, now: float) -> None:
        while self._streams:
            stream_id, stream = next(iter(self._streams.items()))
            if now - stream.last_request_s <= self.idle_limit_s:
                return
            self.expired_streams += 1
            why = f"was expired after {self.idle_limit_s:g} s without a request"
            self._close(stream_id, now, why, _EXPIRED_GRACE_S)

    def _close_lost(self, now: float) -> None:
        """Closes streams that a later stage refused or lost: their clients may never send another request."""
        failed = self._ledger.failed_generations()
        lost = [name for name, each in self._streams.items() if failed[each.lease.slot] >= each.lease.generation]
        for stream_id in lost:
            self._close(stream_id, now, _LOST)

    def _reclaim(self, now: float) -> None:
        """Frees closed slots. Looks only when somebody wants one, and only at those."""
        for lease, deadline_s in list(self._closing.items()):
            if now >= deadline_s or self._ledger.settled_requests(*lease) >= self._handed_on[lease.slot]:
                del self._closing[lease]
                self._free.append(lease.slot)
