"""StreamTable assigns a slot to each live stream: open, look up, close, expire."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.ranks import ranks
from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.pipeline.slots.ledger import SlotLedger

_MIN_REMEMBERED_ENDS = 4096
_EXPIRED_GRACE_S = 0.5
"""The time that the slot of an expired stream waits for its requests. They had the whole idle limit to settle; requests
that Triton dropped between two stages, because the client disconnected, never settle."""
_MAX_EXCUSED_S = 300.0
"""Time in steps that does not count as idle, at most, between two requests of a stream.

Without a limit none would ever expire where steps follow each other without a gap.
"""
_LOST = "was lost by a later stage"
END, IDLE, RESTART = "end", "idle", "restart"
"""Values of `StreamRecord.ended_by` for a stream that no error ended."""


def slot_count(max_streams: int) -> int:
    """Slots of a table for `max_streams` live streams: an eighth more than streams, at least two more."""
    return max_streams + max(2, max_streams // 8)


class Lease(NamedTuple):
    """A stream's right to a slot."""

    slot: int
    generation: int
    """Increases with every `open`; distinguishes a late request of an earlier stream from the present stream's."""


@dataclass
class StreamRecord:
    """The table's record of one stream."""

    stream_id: Hashable
    lease: Lease
    decoder: str = ""
    samples: int = 0
    """Samples of its requests; set at its end."""
    segments: int = 0
    """Segments that they ended; set at its end."""
    ended_by: str = ""
    """`END`, `IDLE`, `RESTART` or the code of the error that ended the stream; empty while it is live."""


class StreamTable:
    """Stream id -> slot, for at most `max_streams` live streams.

    - Spare slots: a stream that ends or restarts does not wait until its last requests have settled.
    - Idle timeout: a stream without a request for `idle_limit_s` expires with the next call of any method. Time in a
      step does not count, because its requests may wait for the end of the step; for one with speakers nor does that
      in a step of the speaker model.
    - A closed stream's slot is free once the ledger has settled all its requests, at the latest after `idle_limit_s`
      (half a second for an expired stream). A request that arrives even later is rejected by `SlotGuard`.
    - A stream that a later stage has rejected or lost is closed with the next call that needs a slot.
    - A stream of an offline model is open after its END, until its work is done: `close_due`.
    """

    def __init__(
        self,
        max_streams: int,
        ledger: SlotLedger,
        idle_limit_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        board: DrainBoard | None = None,
        on_settled: Callable[[StreamRecord], object] = lambda record: None,
        speaker_streams: int = 0,
    ):
        """board: shared with the launcher, which drains the streams through it.

        speaker_streams: how many of the live streams may have speakers.

        on_settled: called once for each stream that has ended, when all its requests have settled.
        """
        slots = slot_count(max_streams)
        self.max_streams, self.speaker_streams = max_streams, speaker_streams
        self.slots = slots
        self.idle_limit_s = idle_limit_s
        self._ledger = ledger
        self._clock = clock
        self._board = board or DrainBoard(slots)
        self._shown = np.frombuffer(self._board.times_ns, np.int64)  # [S], in the board's memory, as two below
        self._on_settled = on_settled
        self._slot_of: dict[Hashable, int] = {}  # live streams
        self._free = list(range(slots - 1, -1, -1))
        # By slot, for its latest stream, [S]:
        self._has_speakers = np.frombuffer(self._board.has_speakers, np.int64)
        self._records: list[StreamRecord | None] = [None] * slots
        self._generations = np.frombuffer(self._board.generations, np.int64)
        self._is_live = np.zeros(slots, bool)
        self._last_request_s = np.zeros(slots)  # later by what is excused
        self._excused_s, self._speaker_busy_s = np.zeros((2, slots))
        self._step_began_s = np.inf
        self._forwarded = np.frombuffer(self._board.forwarded, np.int64)
        self._samples = np.zeros(slots, np.int64)
        self._segments = np.zeros(slots, np.int64)
        self._free_at_s = np.full(slots, np.inf)  # when closing slots are free without the ledger
        self._is_closing = np.zeros(slots, bool)
        self._ends: OrderedDict[Hashable, str] = OrderedDict()
        self._remembered_ends = max(_MIN_REMEMBERED_ENDS, slots)
        self._generation = time.time_ns()  # above those of an earlier table on the same ledger
        self.started_streams = 0
        """Streams that got a slot, without probes."""
        self.expired_streams = 0
        """Streams that ended by the idle timeout."""
        self.rejected_starts = 0
        """Starts without a free slot, without those of probes."""
        self.busy_s = 0.0
        """Seconds in steps."""

    @property
    def live_streams(self) -> int:
        """Streams that are open."""
        return len(self._slot_of)

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
        return min(self.max_streams - len(self._slot_of), len(self._free))

    def open(self, stream_id: Hashable, decoder: str = "", is_probe: bool = False, has_speakers: bool = False) -> Lease:
        """Gives a new stream a slot; a live stream with that id is closed first.

        is_probe: the same request ends it, without audio; it is not counted. Raises StreamError STREAM_LIMIT if
        `max_streams` others are live, or `speaker_streams` with speakers; SERVER_DRAINING if the server is stopping.
        """
        # Before the phase is read: a launcher that changes it waits for this, and then counts all streams.
        self._board.is_admitting = True
        try:
            return self._open(stream_id, decoder, is_probe, has_speakers)
        finally:
            self._board.is_admitting = False

    def _open(self, stream_id: Hashable, decoder: str, is_probe: bool, has_speakers: bool) -> Lease:
        now = self._clock()
        if self._board.phase != Phase.SERVING:
            raise StreamError(
                ErrorCode.SERVER_DRAINING,
                f"stream {stream_id!r} rejected: the server is stopping; start the stream again in a few seconds",
            )
        self._expire(now)
        # The new stream gets another slot: requests of the old one may still be on their way.
        if stream_id in self._slot_of:
            self._close(stream_id, now, "was started again", RESTART)
        # Before the count: what is lost closes, and what has settled gives its slot back.
        self._close_lost(now)
        self._reclaim(now)
        taken = None
        if len(self._slot_of) >= self.max_streams or not self._free:
            taken = f"{self.max_streams} stream slots"
        elif has_speakers and not self.count_speakers()[1]:
            taken = f"{self.speaker_streams} speaker streams (--speaker-streams)"
        if taken is not None:
            self.rejected_starts += not is_probe
            message = f"stream {stream_id!r} rejected: all {taken} are taken; try again later"
            raise StreamError(ErrorCode.STREAM_LIMIT, message)
        # Behind the last check: after a rejected start it is still known how the last stream of this id ended.
        self._ends.pop(stream_id, None)
        self._generation += 1
        slot = self._free.pop()
        lease = Lease(slot, self._generation)
        self._slot_of[stream_id] = slot
        self._records[slot] = StreamRecord(stream_id, lease, decoder)
        self._generations[slot] = self._generation
        self._is_live[slot], self._has_speakers[slot] = True, has_speakers
        self._forwarded[slot] = self._samples[slot] = self._segments[slot] = 0
        # The time last: a launcher that finds it finds this stream's generation and counts, too.
        self._show_request(slot, now)
        self.started_streams += not is_probe
        return lease

    def count_speakers(self) -> tuple[int, int]:
        """Returns how many streams with speakers are open, and how many could start in free slots.

        Closed ones whose requests have not settled hold a place of the speaker model, too; it has as many to spare.
        """
        counts = (np.count_nonzero(self._has_speakers * each) for each in (self._is_live, self._is_closing))
        live, closing = map(int, counts)
        spare = slot_count(self.speaker_streams) - live - closing
        return live, max(min(self.speaker_streams - live, spare, len(self._free)), 0)

    def look_up(self, stream_id: Hashable) -> Lease:
        """Returns the lease of a live stream.

        Raises StreamError STREAM_NOT_OPEN with the reason, STREAM_LOST, or SERVER_DRAINING if the drain is over.
        """
        slot = int(self.look_up_all([stream_id])[0])
        if slot < 0:
            raise self.problem_with(stream_id)
        return Lease(slot, int(self._generations[slot]))

    def look_up_all(self, stream_ids: Sequence[Hashable]) -> np.ndarray:
        """Returns the slots [n] int64 of streams; -1 where `problem_with` says why there is none."""
        now = self._clock()
        self._expire(now)
        slots = np.array([self._slot_of.get(stream_id, -1) for stream_id in stream_ids], np.int64)
        # An id without a slot reads the last slot here, and stays at -1 in any case.
        slots[self._ledger.failed_generations(slots) >= self._generations[slots]] = -1
        if self._board.phase >= Phase.CLOSED:
            slots[:] = -1
        # Not for what is rejected: such requests must not keep a stream from expiring.
        self._show_request(slots[slots >= 0], now)
        return slots

    def problem_with(self, stream_id: Hashable) -> StreamError:
        """Returns why `look_up_all` finds no slot, and closes a stream that cannot continue."""
        slot, now = self._slot_of.get(stream_id), self._clock()
        if slot is None:
            why = self._ends.get(stream_id, "was never started or has ended")
            message = f"stream {stream_id!r} is not open: it {why}; start it with START"
            return StreamError(ErrorCode.STREAM_NOT_OPEN, message)
        if self._ledger.failed_generations(slot) >= self._generations[slot]:
            self._close(stream_id, now, _LOST, self._ledger.failed_code(slot).name)
            message = f"stream {stream_id!r} was lost by a later stage of the server; start it again"
            return StreamError(ErrorCode.STREAM_LOST, message)
        self._close(stream_id, now, "was cut off by the server's stop", ErrorCode.SERVER_DRAINING.name)
        message = f"stream {stream_id!r} was cut off: the server is stopping and did not wait longer"
        return StreamError(ErrorCode.SERVER_DRAINING, message)

    def is_open(self, stream_id: Hashable) -> bool:
        """True if the stream is live and no later stage has lost it."""
        now = self._clock()
        self._expire(now)
        self._close_lost(now)
        return stream_id in self._slot_of

    def forward(self, slots: np.ndarray, samples: np.ndarray, is_final: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts requests [n] that go to the later stages, which will settle them; is_final: they end a segment.

        A slot may occur several times. Returns the generations [n], and the streams' requests before each.
        """
        # Before the counts grow; ranks, because a slot may occur several times.
        numbers = self._forwarded[slots] + ranks(slots)
        np.add.at(self._forwarded, slots, 1)
        np.add.at(self._samples, slots, samples)
        np.add.at(self._segments, slots[is_final], 1)
        return self._generations[slots], numbers

    def take_back(self, slots: np.ndarray) -> None:
        """Undoes `forward` of requests [n] that go nowhere, because their step failed."""
        np.subtract.at(self._forwarded, slots, 1)

    def open_generation(self, slot: int) -> int:
        """The generation of the live stream in a slot; 0 without one."""
        return int(self._generations[slot]) if self._is_live[slot] else 0

    def encoded_windows(self, slot: int) -> int:
        """Windows of the live stream in a slot of an offline model that are encoded, or fewer."""
        return self._ledger.encoded_windows(slot, int(self._generations[slot]))

    def stream_in(self, slot: int) -> Hashable | None:
        """The id of the live stream in a slot."""
        record = self._records[slot]
        return record.stream_id if record is not None and self._is_live[slot] else None

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the process that reads the requests: time in the block does not count as idle, here and in a drain,
        up to 300 s in sum between two requests of a stream.
        """
        self._step_began_s = began_s = self._clock()
        self._board.step_began_ns = int(1e9 * began_s)
        try:
            yield
        finally:
            now = self._clock()
            self.busy_s += now - began_s
            # A stream whose request was read in this step has waited only since then.
            idle_s = np.minimum(now - began_s, now - self._last_request_s)
            excused_s = np.minimum(idle_s, _MAX_EXCUSED_S - self._excused_s) * self._is_live
            self._step_began_s = np.inf
            self._excused_s += excused_s
            self._last_request_s += excused_s
            # In the launcher's memory, too: its drain would take the streams for silent.
            self._shown += (1e9 * excused_s).astype(np.int64)
            # Last: until the times are moved on, a drain counts from the step's begin.
            self._board.step_began_ns = 0

    def close(self, stream_id: Hashable, why: str = "has ended", ended_by: str = END) -> None:
        """Ends a live stream; does nothing if the id is not live. ended_by: as in `StreamRecord`."""
        if stream_id in self._slot_of:
            self._close(stream_id, self._clock(), why, ended_by)

    def close_due(self) -> None:
        """Closes the streams that have expired, those that a later stage lost, and those whose last reply is out: their
        work is done, and all their requests have settled.
        """
        now = self._clock()
        self._expire(now)
        self._close_lost(now)
        are_done = (self._ledger.ended_generations() == self._generations) & self._is_live
        if are_done.any():
            # Its last reply is out then. Before, a poll on its way would find no stream.
            are_done &= self._ledger.all_settled(self._generations) >= self._forwarded
            self._close_streams(are_done, now, "has ended", END)

    def close_all(self, ended_by: str) -> None:
        """Ends all streams and reports each, also those whose requests have not settled."""
        for stream_id in list(self._slot_of):
            self.close(stream_id, ended_by=ended_by)
        self.free_closed()

    def free_closed(self) -> None:
        """Frees the slots of closed streams, also those with requests that have not settled: none is on its way."""
        self._reclaim(float("inf"))

    def _show_request(self, slots: np.ndarray | int, now: float) -> None:
        self._last_request_s[slots], self._excused_s[slots] = now, 0.0
        self._shown[slots] = int(1e9 * now)
        if self.speaker_streams:
            self._speaker_busy_s[slots] = self._board.speaker_busy_s

    def _close(
        self, stream_id: Hashable, now: float, why: str, ended_by: str, max_wait_s: float = float("inf")
    ) -> None:
        """max_wait_s: how long the slot may wait for unsettled requests; at most the idle limit."""
        slot = self._slot_of.pop(stream_id)
        record = self._records[slot]
        assert record is not None
        record.ended_by = ended_by
        # Negative: a drain no longer counts the stream, but still waits for its requests.
        self._is_live[slot], self._shown[slot] = False, -int(1e9 * now)
        # Not free yet: the slot's next stream would share batches with late requests of this one.
        self._is_closing[slot], self._free_at_s[slot] = True, now + min(self.idle_limit_s, max_wait_s)
        self._ends[stream_id] = why
        if len(self._ends) > self._remembered_ends:
            self._ends.popitem(last=False)

    def _close_streams(
        self, are_due: np.ndarray, now: float, why: str, ended_by: str = "", max_wait_s: float = float("inf")
    ) -> int:
        """Closes the live streams of slots [S] bool; returns how many. ended_by: by default the error in the ledger."""
        due = (are_due & self._is_live).nonzero()[0].tolist()
        for slot in due:
            record = self._records[slot]
            assert record is not None
            self._close(record.stream_id, now, why, ended_by or self._ledger.failed_code(slot).name, max_wait_s)
        return len(due)

    def _expire(self, now: float) -> None:
        why = f"expired after {self.idle_limit_s:g} s without a request"
        # Up to the step's begin: requests that came since have not been read.
        idle_s = min(now, self._step_began_s) - self._last_request_s
        if self.speaker_streams:
            waited_s = self._board.speaker_busy_s - self._speaker_busy_s
            # Below 0 after a step that its process did not end.
            idle_s -= waited_s.clip(0.0, _MAX_EXCUSED_S) * self._has_speakers
        are_due = idle_s > self.idle_limit_s
        self.expired_streams += self._close_streams(are_due, now, why, IDLE, _EXPIRED_GRACE_S)

    def _close_lost(self, now: float) -> None:
        """Closes streams that a later stage rejected or lost: their clients may never send another request."""
        self._close_streams(self._ledger.failed_generations() >= self._generations, now, _LOST)

    def _reclaim(self, now: float) -> None:
        """Frees closed slots whose requests have settled or are dropped, or whose deadline has passed."""
        if not self._is_closing.any():
            return
        is_settled = self._ledger.all_settled(self._generations) >= self._forwarded
        is_settled |= self._ledger.dropped_generations() == self._generations
        for slot in np.flatnonzero(self._is_closing & (is_settled | (now >= self._free_at_s))).tolist():
            record = self._records[slot]
            assert record is not None
            # Before the slot is free: its counts and its latencies are the next stream's then.
            record.samples, record.segments = int(self._samples[slot]), int(self._segments[slot])
            self._is_closing[slot], self._shown[slot] = False, 0
            self._on_settled(record)
            self._free.append(slot)
