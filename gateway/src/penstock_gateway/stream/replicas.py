"""The servers of one group: which of them answer, and which has the most room."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

from penstock_client import BatchedClient, BatchedStream, ConnectionOptions
from penstock_common.errors import (
    ClientError,
    ServerDrainingError,
    ServerFullError,
    SpeakersNotServedError,
    StreamError,
)
from penstock_common.options import LIVE, StreamOptions
from penstock_common.server_info import ServerInfo
from penstock_gateway import limits
from penstock_gateway.config import ReplicaGroup
from penstock_gateway.stream.discovery import Discovery, NoteFile
from penstock_gateway.stream.options import ModelGroup

log = logging.getLogger(__name__)
_MOVING_PART, _MIN_MOVING = 8, 2
"""An eighth of the streams of a replica that drains move at a time, at least two: their audio delays the streams where
it is sent to, and all have to be gone in the time of the drain."""
_MORE_REPLAY_S = 30
"""Beyond the longest segment: up to 6 s until its pause, and the warm-up before it."""
_DOWN = ("CONNECTION_LOST", "REPLY_TIMEOUT", "SERVER_UNREACHABLE", "REPLY_INVALID", StreamError.code)
"""The codes of errors of a stream whose replica has failed."""
_NO_RETRY = ConnectionOptions(connect_retry_s=0)


class Replica:
    """One server."""

    is_removed = False
    """True once its address is gone: it takes no more streams, and is closed after its last one."""
    is_draining = False
    """True while the replica drains: its streams go to other replicas."""
    same: "Replica | None" = None
    """An earlier replica of its group that is another address of its server."""

    def __init__(self, address: str, timeout_s: float, longest_segment_s: int = 0):
        """longest_segment_s: its streams can be moved, unless it is 0."""
        self.address = address
        self.client = BatchedClient(
            address,
            timeout_s=timeout_s,
            connection_options=_NO_RETRY,
            max_unanswered_s=limits.MAX_UNANSWERED_S,
            slow_s=limits.UNRESPONSIVE_S,
            max_replay_s=longest_segment_s and longest_segment_s + _MORE_REPLAY_S,
        )
        self.move_turns = asyncio.Semaphore()
        """Taken by each stream that moves while it drains."""
        self.information: ServerInfo | None = None
        """None while it does not answer, or serves another model than its group."""
        self.memory_s: float | None = None
        """Audio that it can hold, of an offline model, also while it does not answer; None until it was up."""
        self.live = 0
        """Streams of this process."""
        self._released = 0
        self.has_speakers: bool | None = None
        """A speaker model, as its newest stream that asked for one has shown; None: none has asked."""
        self._closed_until_s = 0.0
        self._said_down_s = -math.inf
        self._mismatch = ""

    @property
    def load(self) -> float:
        """The part of its streams that this process uses, 0 .. 1 or more."""
        return self.live / self.information.max_streams if self.information else 1.0

    @property
    def is_spare(self) -> bool:
        """True while another address of its server answers, which takes the streams."""
        return self.same is not None and not self.same.is_removed and self.same.information is not None

    @property
    def has_room(self) -> bool:
        """True if another stream may start."""
        return self.is_open and self.load < 1

    @property
    def is_open(self) -> bool:
        """True if a stream may start, as far as the number of its streams allows."""
        if self.is_removed or self.is_draining or self.is_spare:
            return False
        return self.information is not None and time.monotonic() >= self._closed_until_s

    async def start(self, options: StreamOptions) -> BatchedStream:
        """A stream that it has accepted. Raises ClientError."""
        try:
            upstream = await self.client.open_stream(options)
        except ClientError as error:
            if error.of_speakers:
                self.has_speakers = not isinstance(error, SpeakersNotServedError)
            raise
        try:
            await upstream.accepted()
        except BaseException:
            upstream.cancel()
            raise
        if upstream.has_speakers:
            self.has_speakers = True
        return upstream

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Counts a stream that starts or arrives here; no longer where the block fails."""
        self.live += 1  # before the server is asked: other streams see the room that is left
        try:
            yield
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Releases one of its live streams, which is over."""
        self.live -= 1
        self._released += 1

    def note_full(self, seconds: float = limits.TICK_S / 2) -> None:
        """Notes that the replica has rejected a stream: it gets no other one for this time."""
        self._closed_until_s = time.monotonic() + seconds

    def note_error(self, error: ClientError) -> None:
        """Notes a stream's failure, or that it cannot move here. An error of only the speaker model closes nothing."""
        if error.of_speakers:
            return
        if error.code in _DOWN:
            self.note_down(error.text)
        elif isinstance(error, ServerFullError | ServerDrainingError):
            self.note_full()

    def note_down(self, reason: str) -> None:
        """Notes that the replica does not answer; the next probe decides."""
        now_s = time.monotonic()
        if self.information is not None:
            log.warning("replica %s is down: %s", self.address, reason)
        elif now_s - self._said_down_s < limits.MINUTE_S:
            return
        elif self._said_down_s == -math.inf:  # it may be starting: no warning yet
            log.info("replica %s is not reachable: %s; trying every %g s", self.address, reason, limits.PROBE_S)
        else:
            log.warning("replica %s is still not reachable: %s", self.address, reason)
        self.information, self._said_down_s = None, now_s
        self.has_speakers = self.has_speakers or None  # it may come back with one

    def note_up(self, information: ServerInfo) -> None:
        """Notes that the replica answers, with the model of its group."""
        if self.information is None:
            log.info("replica %s is up: %s", self.address, information.model)
        self.information, self._mismatch = information, ""
        self.memory_s = information.max_audio_s

    def note_mismatch(self, reason: str) -> None:
        """Notes that the replica answers, with another model than its group."""
        if reason != self._mismatch:
            log.warning("replica %s gets no streams: %s", self.address, reason)
        self.information, self._mismatch = None, reason

    async def probe(self) -> ServerInfo | None:
        """Sends an empty stream through its models, among its streams; None where the engine finds it dead."""
        released = self._released  # before the probe: a stream that ends meanwhile leaves room
        try:
            probed = await self.client.probe()
        except ClientError as error:
            self.note_down(error.text)
            return None
        if probed.is_full and released == self._released:
            self.note_full()
        # Before `is_draining` is set: streams that leave find the turns of this drain.
        if probed.is_draining and not self.is_draining:
            log.info("replica %s is draining: its %d streams move", self.address, self.live)
            self.move_turns = asyncio.Semaphore(max(_MIN_MOVING, self.live // _MOVING_PART))
        self.is_draining = probed.is_draining
        return probed.information


class Group:
    """Servers with the same model and context. `run` keeps what is known of them fresh."""

    def __init__(
        self,
        group: ReplicaGroup,
        timeout_s: float,
        longest_segment_s: int = 0,
        live_window: str | None = None,
        note_file: NoteFile = lambda *_: None,
    ):
        """note_file: as of `Discovery`."""
        self._name, self._live_window = group.name, live_window
        self._discovery = Discovery(group.addresses, note_file=note_file)
        self._make = partial(Replica, timeout_s=timeout_s, longest_segment_s=longest_segment_s)
        self.replicas = [self._make(address) for address in self._discovery.fixed]
        self.model: ModelGroup | None = None
        """None until a replica has answered. It is kept while none answers."""
        self._first_seen: dict[str, int] = {}
        """The round of probes in which the servers with a fingerprint were found."""
        self._rounds = 0

    @property
    def name(self) -> str:
        """Name that clients write as the model; "" until a replica has answered, if the configuration gives none."""
        return self.model.name if self.model is not None else self._name

    @property
    def sample_rate_hz(self) -> int:
        """Rate of the model; 0 until a replica has answered."""
        return self.model.sample_rate_hz if self.model is not None else 0

    @property
    def is_up(self) -> bool:
        """True if a replica answers."""
        return any(replica.information is not None for replica in self.replicas)

    @property
    def may_have_speakers(self) -> bool:
        """True if a replica has a speaker model, or one that answers was not asked yet."""
        return any(
            each.has_speakers or (each.has_speakers is None and each.information is not None)
            for each in self.replicas
            if not each.is_removed
        )

    @property
    def memory_s(self) -> float:
        """Audio that its servers can hold together, of an offline model; 0 where one does not say."""
        counted = [each for each in self.replicas if not each.is_removed and not each.is_spare]
        known = [each.memory_s for each in counted if each.memory_s is not None]
        return sum(known) if all(known) else 0.0

    def candidates(self, own: Replica | None = None) -> Sequence[Replica]:
        """Replicas for a stream, that for the next one first. own: counts the stream already, and may be full.

        Of the fingerprint that came last, that with more room of two random ones: several gateways, which do not know
        of each other's streams, would all choose the same one otherwise. Then the others by their room.
        """
        with_room = (each for each in self.replicas if each.has_room or (each is own and each.is_open))
        candidates = sorted(with_room, key=self._rank)
        newest = [replica for replica in candidates if self._rank(replica)[0] == self._rank(candidates[0])[0]]
        if len(newest) > 1:
            first = min(random.sample(newest, 2), key=self._rank)
            candidates.sort(key=lambda replica: replica is not first)
        return candidates

    def _rank(self, replica: Replica) -> tuple[int, float, int]:
        """Lower is better."""
        assert replica.information is not None
        age = -self._first_seen.get(replica.information.fingerprint, 0)
        return age, replica.load, -replica.information.max_streams

    async def discover(self, now_s: float) -> None:
        """Adds and removes replicas as their addresses come and go. `now_s`: of a monotonic clock."""
        addresses = await self._discovery.addresses(now_s)
        for replica in self.replicas:
            if replica.is_removed != (replica.address not in addresses):
                replica.is_removed = not replica.is_removed
                log.info("replica %s is %s", replica.address, "gone" if replica.is_removed else "back")
        known = {replica.address for replica in self.replicas}
        self.replicas += [self._make(address) for address in addresses if address not in known]
        over = [replica for replica in self.replicas if replica.is_removed and not replica.live]
        self.replicas = [replica for replica in self.replicas if replica not in over]
        await asyncio.gather(*(replica.client.close() for replica in over))

    async def probe(self) -> None:
        """Probes all replicas. One with another model or context than the group takes no streams.

        Those with other weights or another version under the same name are others, for new streams only. A replica with
        the group's model is up as soon as it answers. What the group serves is decided when all have answered, so that
        their order does not matter.
        """
        last = self.model
        answers = [each for each in await asyncio.gather(*map(self._ask, self.replicas)) if each is not None]
        if not answers:
            return
        wanted = self._choose([model for _, _, model in answers])
        is_as_before = last is not None and _is_alike(wanted, last)
        alike = []
        for replica, information, model in answers:
            if not _is_alike(model, wanted):
                replica.note_mismatch(f"serves {model.model} {model.context}, not {wanted.model} {wanted.context}")
                continue
            alike.append(information.fingerprint)
            if not is_as_before:
                replica.note_up(information)
        self._find_spares()
        self._rounds += 1
        self._first_seen = {each: self._first_seen.get(each, self._rounds) for each in alike}
        self.model = max(
            (model for _, _, model in answers if _is_alike(model, wanted)),
            key=lambda model: self._first_seen[model.fingerprint],
        )

    def _find_spares(self) -> None:
        """Finds spare addresses: of several of one server, such as its IPv4 and IPv6, the first takes its streams."""
        firsts: dict[str, Replica] = {}
        for replica in self.replicas:
            if replica.information is None or replica.is_removed:
                continue
            first = firsts.setdefault(replica.information.server_id or replica.address, replica)
            if first not in (replica, replica.same):
                log.info("replica %s is the server of %s: used while that fails", replica.address, first.address)
            replica.same = None if first is replica else first

    async def _ask(self, replica: Replica) -> tuple[Replica, ServerInfo, ModelGroup] | None:
        """Probes a replica, which is noted at once where it has the group's model; None without an answer."""
        last, information = self.model, await replica.probe()
        if information is None:
            return None
        model = ModelGroup(
            name=self._name or information.model,
            live_window=self._live_window if LIVE in information.windows else None,
            **{field.name: getattr(information, field.name) for field in fields(information)},
        )
        if last is not None and _is_alike(model, last):
            replica.note_up(information)
        return replica, information, model

    def _choose(self, models: Sequence[ModelGroup]) -> ModelGroup:
        """Chooses the group's model: the same as before while a replica serves it, else the first of these models."""
        last = self.model
        return next((model for model in models if last is not None and _is_alike(model, last)), models[0])

    async def close(self) -> None:
        """Closes its replicas."""
        await asyncio.gather(*(replica.client.close() for replica in self.replicas))


def _is_alike(one: ModelGroup, other: ModelGroup) -> bool:
    return (one.model, one.context) == (other.model, other.context)
