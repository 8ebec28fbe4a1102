"""Moves live streams from a replica that is lost to another one of the same model."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from penstock_client import SAMPLE_RATE_HZ, BatchedStream, ClientError
from penstock_client.batched.client import move_to_any
from penstock_gateway.metrics import Metrics
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.replicas import Group, Replica
from penstock_gateway.stream.stream_report import StreamReport

log = logging.getLogger(__name__)
_SAMPLE_BYTES = 4


@dataclass(eq=False)
class Place:
    """Where a live stream is."""

    group: Group
    replica: Replica
    upstream: BatchedStream
    report: StreamReport
    key: ApiKey
    is_over: bool = False

    def leave(self) -> None:
        """The stream is over."""
        self.is_over = True
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

    async def take(self, stream: BatchedStream) -> None:
        self.replica.live += 1
        try:
            await self.replica.client.take(stream)
        except ClientError as error:
            self.replica.release()
            if not stream.is_over:
                self.replica.note_error(error)
            raise
        except asyncio.CancelledError:
            self.replica.release()
            raise
        if self.place.is_over:  # meanwhile
            self.replica.release()
            return
        self.place.replica.release()
        self.place.replica = self.replica
        self.place.report.moved(self.replica.address, stream.name)


class Moves:
    """The policy of one process: which streams move, and where to."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
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
        place.replica.note_error(error)
        if not place.upstream.fingerprint:  # of a server of an earlier version
            return False
        task = asyncio.create_task(self._rescue(place, error))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _rescue(self, place: Place, error: ClientError) -> None:
        source, name, before = place.replica.address, place.upstream.name, place.upstream.replayed_samples
        target = await move_to_any(place.upstream, error, lambda: self._targets(place))
        if target is None:
            log.warning("stream %s of %s is lost: %s", name, source, error)
            return
        self._metrics.streams_moved.labels(error.code).inc()
        self._metrics.replayed_seconds.inc((place.upstream.replayed_samples - before) / SAMPLE_RATE_HZ)
        to = place.upstream.name
        log.info("stream %s of %s is now %s of %s: %s", name, source, to, place.replica.address, error.code)

    def _targets(self, place: Place) -> Iterator[_Target]:
        """Replicas of the same model; that with the most room first."""
        for replica in place.group.candidates():
            if replica.information and replica.information.fingerprint == place.upstream.fingerprint:
                yield _Target(place, replica)
