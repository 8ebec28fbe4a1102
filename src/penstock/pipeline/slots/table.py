"""StreamTable assigns a slot to each live stream: open, look up, close, expire."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.pipeline.slots.ledger import SlotLedger

_MIN_REMEMBERED_ENDS = 4096
_EXPIRED_GRACE_S = 0.5
"""How long the slot of an expired stream waits for its requests. They had the whole idle limit to settle; requests that
Triton dropped between two stages, because the client disconnected, never settle."""
_LOST = "was lost by a later stage"
END, IDLE, RESTART = "end", "idle", "restart"
"""How a stream ended (`StreamRecord.ended_by`) that no error ended."""


def slot_count(max_streams: int) -> int:
    """Slots of a table for `max_streams` live streams: an eighth more than streams, at least two more."""
    return max_streams + max(2, max_streams // 8)


class Lease(NamedTuple):
    """A stream's right to a slot."""

    slot: int
    generation: int
    """Increases with every `open`; distinguishes a late request of an earlier stream from the present stream's."""


NO_LEASE = Lease(-1, 0)
"""Matches no slot of any stage."""


@dataclass
class StreamRecord:
    """The table's record of one stream."""

    stream_id: Hashable
    lease: Lease
    last_request_s: float
    decoder: str = ""
    forwarded: int = 0
    """Requests that went to the later stages."""
    samples: int = 0
    """Samples of these requests."""
    segments: int = 0
    """Segments that they ended."""
    ended_by: str = ""
    """`END`, `IDLE`, `RESTART` or the code of the error that ended the stream; empty while it is live."""


class StreamTable:
    """Stream id -> slot, for at most `max_streams` live streams.

    - Spare slots: a stream that ends or restarts does not wait until its last requests have settled.
    - Idle timeout: a stream without a request for `idle_limit_s` expires with the next call of any method.
    - A closed stream's slot is free once the ledger has settled all its requests, at the latest after `idle_limit_s`
      (half a second for an expired stream). A request that arrives even later is rejected by `SlotGuard`.
    - A stream that a later stage has rejected or lost is closed with the next call that needs a slot.
    """

    def __init__(
        self,
        max_streams: int,
        ledger: SlotLedger,
        idle_limit_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        board: DrainBoard | None = None,
        on_settled: Callable[[StreamRecord], object] = lambda record: None,
    ):
        """board: shared with the launcher, which drains the streams through it.

        on_settled: called once for each stream that has ended, when all its requests have settled.
        """
        slots = slot_count(max_streams)
        self.max_streams = max_streams
        self.slots = slots
        self.idle_limit_s = idle_limit_s
        self._ledger = ledger
        self._clock = clock
        self._board = board or DrainBoard(slots)
        self._on_settled = on_settled
        self._streams: OrderedDict[Hashable, StreamRecord] = OrderedDict()  # longest idle first
        self._free = list(range(slots - 1, -1, -1))
        self._closing: dict[Lease, float] = {}  # deadline after which the slot is free without the ledger
        self._latest: list[StreamRecord | None] = [None] * slots  # the slot's latest stream
        self._ends: OrderedDict[Hashable, str] = OrderedDict()
        self._remembered_ends = max(_MIN_REMEMBERED_ENDS, slots)
        self._generation = time.time_ns()  # above those of an earlier table on the same ledger
        self.started_streams = 0
        """Streams that got a slot."""
        self.expired_streams = 0
        """Streams that ended by the idle timeout."""
        self.rejected_starts = 0
        """Starts without a free slot."""

    @property
    def live_streams(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    @property
    def ended_streams(self) -> int:
        """Streams that ended without expiring."""
        return self.started_streams - self.expired_streams - self.live_streams

    def count_free(self) -> int:
        """Returns how many streams could start now, after expiring and freeing what is due."""
        now = self._clock()
        if self._board.phase == Phase.OVER:
            self.close_all(ErrorCode.SERVER_DRAINING.name)
        self._expire(now)
        self._close_lost(now)
        self._reclaim(now)
        return min(self.max_streams - len(self._streams), len(self._free))

    def open(self, stream_id: Hashable, decoder: str = "") -> Lease:
        """Gives a new stream a slot; a live stream with that id is closed first.

        Raises StreamError STREAM_LIMIT if `max_streams` others are live, SERVER_DRAINING if the server is stopping.
        """
        now = self._clock()
        if self._board.phase != Phase.SERVING:
            raise StreamError(
                ErrorCode.SERVER_DRAINING,
                f"stream {stream_id!r} rejected: the server is stopping; start the stream again in a few seconds",
            )
        self._expire(now)
        if stream_id in self._streams:
            self._close(stream_id, now, "was started again", RESTART)
        self._close_lost(now)
        self._reclaim(now)
        if len(self._streams) >= self.max_streams or not self._free:
            self.rejected_starts += 1
            raise StreamError(
                ErrorCode.STREAM_LIMIT,
                f"stream {stream_id!r} rejected: all {self.max_streams} stream slots are taken; try again later",
            )
        self._ends.pop(stream_id, None)
        self._generation += 1
        lease = Lease(self._free.pop(), self._generation)
        self._streams[stream_id] = self._latest[lease.slot] = StreamRecord(stream_id, lease, now, decoder)
        self._board.show(lease.slot, now)
        self.started_streams += 1
        return lease

    def look_up(self, stream_id: Hashable) -> Lease:
        """Returns the lease of a live stream.

        Raises StreamError STREAM_NOT_OPEN with the reason, STREAM_LOST, or SERVER_DRAINING if the drain is over.
        """
        now = self._clock()
        self._expire(now)
        stream = self._streams.get(stream_id)
        if stream is None:
            why = self._ends.get(stream_id, "was never started or has ended")
            raise StreamError(
                ErrorCode.STREAM_NOT_OPEN, f"stream {stream_id!r} is not open: it {why}; start it with START"
            )
        if self._ledger.failed_generation(stream.lease.slot) >= stream.lease.generation:
            self._close(stream_id, now, _LOST, self._ledger.failed_code(stream.lease.slot).name)
            raise StreamError(
                ErrorCode.STREAM_LOST,
                f"stream {stream_id!r} was lost by a later stage of the server; start it again",
            )
        if self._board.phase >= Phase.CLOSED:
            self._close(stream_id, now, "was cut off by the server's stop", ErrorCode.SERVER_DRAINING.name)
            raise StreamError(
                ErrorCode.SERVER_DRAINING,
                f"stream {stream_id!r} was cut off: the server is stopping and did not wait longer",
            )
        stream.last_request_s = now
        self._board.show(stream.lease.slot, now)
        self._streams.move_to_end(stream_id)
        return stream.lease

    def is_open(self, stream_id: Hashable) -> bool:
        """True if the stream is live and no later stage has lost it."""
        now = self._clock()
        self._expire(now)
        self._close_lost(now)
        return stream_id in self._streams

    def forward(self, lease: Lease, samples: int = 0, is_final: bool = False) -> int:
        """Counts one request that goes to the later stages, which will settle it; is_final: it ends a segment.

        Returns the stream's requests before it.
        """
        record = self._latest[lease.slot]
        assert record is not None
        record.forwarded += 1
        record.samples += samples
        record.segments += is_final
        return record.forwarded - 1

    def close(self, stream_id: Hashable, why: str = "has ended", ended_by: str = END) -> None:
        """Ends a live stream; does nothing if the id is not live. ended_by: as in `StreamRecord`."""
        if stream_id in self._streams:
            self._close(stream_id, self._clock(), why, ended_by)

    def close_all(self, ended_by: str) -> None:
        """Ends all streams and reports each, also those whose requests have not settled."""
        for stream_id in list(self._streams):
            self.close(stream_id, ended_by=ended_by)
        self._reclaim(float("inf"))

    def _close(
        self, stream_id: Hashable, now: float, why: str, ended_by: str, max_wait_s: float = float("inf")
    ) -> None:
        """max_wait_s: how long the slot may wait for unsettled requests; at most the idle limit."""
        record = self._streams.pop(stream_id)
        record.ended_by = ended_by
        self._board.clear(record.lease.slot)
        self._closing[record.lease] = now + min(self.idle_limit_s, max_wait_s)
        self._ends[stream_id] = why
        if len(self._ends) > self._remembered_ends:
            self._ends.popitem(last=False)

    def _expire(self, now: float) -> None:
        while self._streams:
            stream_id, stream = next(iter(self._streams.items()))
            if now - stream.last_request_s <= self.idle_limit_s:
                return
            self.expired_streams += 1
            why = f"expired after {self.idle_limit_s:g} s without a request"
            self._close(stream_id, now, why, IDLE, _EXPIRED_GRACE_S)

    def _close_lost(self, now: float) -> None:
        """Closes streams that a later stage rejected or lost: their clients may never send another request."""
        failed = self._ledger.failed_generations()
        lost = [each for each in self._streams.values() if failed[each.lease.slot] >= each.lease.generation]
        for record in lost:
            self._close(record.stream_id, now, _LOST, self._ledger.failed_code(record.lease.slot).name)

    def _reclaim(self, now: float) -> None:
        """Frees closed slots whose requests have settled or whose deadline has passed."""
        for lease, deadline_s in list(self._closing.items()):
            record = self._latest[lease.slot]
            assert record is not None
            if now >= deadline_s or self._ledger.settled_requests(*lease) >= record.forwarded:
                del self._closing[lease]
                self._on_settled(record)
                self._free.append(lease.slot)
