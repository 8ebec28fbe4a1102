"""Moves live streams from a replica that is lost or drains to another one of the same model."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_client import SAMPLE_RATE_HZ, BatchedStream, ClientError, ConnectionLostError
from penstock_client.batched.server import move_to_any
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.metrics import Metrics, StreamReport
from penstock_gateway.stream.options import LiveStreamOptions
from penstock_gateway.stream.replica_stream import OnlyOtherModelsError
from penstock_gateway.stream.replicas import Group, Replica

log = logging.getLogger(__name__)
_SAMPLE_BYTES = 4
_WOKEN = "WOKEN"
"""Reason of the move of a stream that had given its slot back."""


@dataclass(eq=False)
class Place:
    """A live stream's place: its group, replica and upstream."""

    group: Group
    replica: Replica
    upstream: BatchedStream
    report: StreamReport
    key: ApiKey
    options: LiveStreamOptions
    """The stream's options now."""
    end_admission: Callable[[], None]
    """The stream counts for its key no longer; also after others."""
    is_over: bool = False
    is_moving: bool = False
    is_parked: bool = False
    """Counts on no replica and not for its key, until audio comes."""
    turn: "asyncio.Task[Literal[True]] | None" = None
    """While it waits to leave a replica that drains."""
    lost: ClientError = field(default_factory=lambda: ConnectionLostError(0, "the stream is on no replica"))
    """The error of the newest loss."""

    def leave(self) -> None:
        """The stream is over."""
        self.is_over = True
        self.end_admission()
        if not self.is_parked:
            self.replica.release()

    def note_parked(self) -> None:
        """Called regularly: replica and key have room for another stream where this one is away until audio comes."""
        if self.upstream.is_parked and not (self.is_parked or self.is_over):
            self.is_parked = True
            self.end_admission()
            self.replica.release()

    @property
    def replay_bytes(self) -> int:
        """Memory of the audio that a move would send again."""
        return _SAMPLE_BYTES * self.upstream.replay_samples


@dataclass(frozen=True)
class _Target:
    """A replica that a stream may move to; it counts as live there meanwhile."""

    place: Place
    replica: Replica
    admission: Admission

    async def move_here(self, stream: BatchedStream) -> None:
        self.replica.live += 1
        if self.place.is_parked:
            self.place.end_admission = self.admission.count(self.place.key)
        try:
            await self.replica.client.move_here(stream)
        except BaseException as error:
            self.replica.release()
            if self.place.is_parked:
                self.place.end_admission()
            if isinstance(error, ClientError) and not stream.is_over:
                self.replica.note_error(error)
            raise
        if self.place.is_over:  # meanwhile
            self.replica.release()
            self.place.end_admission()
            return
        if not self.place.is_parked:
            self.place.replica.release()
        self.place.replica, self.place.is_parked = self.replica, False
        self.place.report.moved(self.replica.address, stream.name)


class _Before:
    """A stream's place before a move."""

    def __init__(self, place: Place):
        self.address, self.name = place.replica.address, place.upstream.name
        self.replayed = place.upstream.replayed_samples
        self.is_parked = place.is_parked


class Moves:
    """The policy of one process: which streams move, and where to."""

    def __init__(self, metrics: Metrics, admission: Admission):
        self._metrics, self._admission = metrics, admission
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, place: Place) -> None:
        """From now on the stream is moved where its replica is lost."""
        place.upstream.on_lost = lambda stream, error: self._note_lost(place, error)

    async def close(self) -> None:
        """Ends the moves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note_lost(self, place: Place, error: ClientError) -> bool:
        if place.upstream.is_parked:
            place.note_parked()  # at the latest now, or it would find its own slot taken
        else:
            place.replica.note_error(error)
        if not place.upstream.fingerprint:  # its server is an earlier version
            return False
        place.lost = error
        if place.turn is not None:
            place.turn.cancel()
        if not place.is_moving:  # else the task that moves it goes on
            self._start(place, self._rescue(place))
        return True

    def leave(self, place: Place) -> None:
        """Called regularly: moves the stream off a replica that drains."""
        upstream = place.upstream
        stays = place.is_moving or upstream.is_parked or upstream.is_over
        if place.replica.is_draining and upstream.fingerprint and not stays:
            self._start(place, self._leave(place))

    def _start(self, place: Place, work: Coroutine[Any, Any, None]) -> None:
        place.is_moving = True
        task = asyncio.create_task(self._run(place, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, place: Place, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            while place.upstream.is_without_server:  # lost again
                await self._rescue(place)
        finally:
            place.is_moving = False

    async def _leave(self, place: Place) -> None:
        """To the first replica that takes the stream; where none does, it stays until the next call."""
        turns = place.replica.move_turns
        turn = place.turn = asyncio.create_task(turns.acquire())
        try:
            await asyncio.wait([turn])
        finally:
            place.turn = None
        if turn.cancelled():  # its replica is lost
            return
        try:
            if not place.upstream.is_parked:  # meanwhile
                await self._move_to_any(place)
        finally:
            turns.release()

    async def _move_to_any(self, place: Place) -> None:
        before = _Before(place)
        for target in self._targets(place):
            try:
                await target.move_here(place.upstream)
            except ClientError as error:
                place.lost = error
                if place.upstream.is_without_server:
                    return
            else:
                return self._note_moved(place, before, "SERVER_DRAINING")

    async def _rescue(self, place: Place) -> None:
        before, error = _Before(place), place.lost
        others = [each.information.fingerprint for each in place.group.replicas if each.information is not None]
        reported = OnlyOtherModelsError() if others and place.upstream.fingerprint not in others else error
        if await move_to_any(place.upstream, reported, lambda: self._targets(place)) is not None:
            self._note_moved(place, before, error.code)
        elif not place.is_over:
            log.warning("stream %s of %s is lost: %s", before.name, before.address, error)

    def _note_moved(self, place: Place, before: "_Before", code: str) -> None:
        code = _WOKEN if before.is_parked else code
        self._metrics.streams_moved.labels(code).inc()
        self._metrics.replayed_seconds.inc((place.upstream.replayed_samples - before.replayed) / SAMPLE_RATE_HZ)
        to = place.upstream.name
        log.info("stream %s of %s is now %s of %s: %s", before.name, before.address, to, place.replica.address, code)

    def _targets(self, place: Place) -> Iterator[_Target]:
        """Replicas of the same model; that with the most room first. None while a parked one has no room in its key."""
        if place.is_parked and not self._admission.has_room(place.key):
            return
        for replica in place.group.candidates():
            if replica.information and replica.information.fingerprint == place.upstream.fingerprint:
                yield _Target(place, replica, self._admission)
