"""A client's live stream: audio to a replica, its results as events, its moves, and the limits of its life.

docs/architecture.md has its states.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from penstock_client import BatchedStream, StreamResult
from penstock_client.batched.server import move_to_any
from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import Samples
from penstock_common.errors import ClientError, ConnectionLostError, StreamClosedError
from penstock_common.samples import SAMPLE_RATE_HZ
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.stream.activity import Activity
from penstock_gateway.stream.admission import Admitted
from penstock_gateway.stream.events import Event, Final, placed
from penstock_gateway.stream.failures import OnlyOtherModelsError, gateway_error
from penstock_gateway.stream.masks import WordMasks
from penstock_gateway.stream.metrics import StreamReport
from penstock_gateway.stream.options import LiveStreamOptions, segments_of
from penstock_gateway.stream.replicas import Group, Replica

log = logging.getLogger(__name__)
_WOKEN = "WOKEN"
"""Reason of the move of a stream that had given its slot back."""


class ReplicaStream:
    """The stream as protocols use it: one task pushes, one reads events. Independent of sockets and protocols.

    Every method raises GatewayError once the stream has failed. Between calls, `ReplicaStreams` watches it, and the
    engine calls it where its replica is lost.
    """

    def __init__(
        self,
        upstream: BatchedStream,
        group: Group,
        replica: Replica,
        admitted: Admitted,
        options: LiveStreamOptions,
        report: StreamReport,
        activity: Activity,
        on_end: Callable[["ReplicaStream"], None],
    ):
        """The stream counts as live on `replica`. on_end: called once, when the server has no more work for it."""
        self._upstream, self.group = upstream, group
        self._replica: Replica | None = replica
        """The replica on which it counts as live; None while it is parked."""
        self._admitted, self._report, self._on_end = admitted, report, on_end
        self.activity = activity
        """Times of its client's messages; protocols note those without audio."""
        self.options = options
        self.start_s = 0.0
        """The time of the first sample in its recording, which counts in the times of events and remarks."""
        self.masks: WordMasks | None = None
        """The words that are masked where the options ask for it."""
        self._masks_as = options.masks
        """The option `masks` at the beginning of the segment."""
        self._segments = segments_of(options)
        self._error: GatewayError | None = None
        """Why it ends early: the first error counts. In a stream that is stopped, results come before it."""
        self._is_finished = False
        """Takes no more audio."""
        self._over = asyncio.Event()
        self._moving: asyncio.Task[None] | None = None
        self._has_turn = False
        """The move is under way; else it waits, on a replica that drains."""
        self._lost: ClientError = ConnectionLostError(0, "the stream is on no replica")
        """The newest loss."""
        upstream.on_lost = self._note_lost

    async def push(self, samples: Samples) -> None:
        """Sends audio [n], float32 or int16 at the model's rate. Waits while more than 2 s are unanswered.

        No samples only show that the client is not silent. Of a file that has begun they do not: it holds memory.
        """
        if not len(samples):
            if not (self._admitted.is_file and self._admitted.samples):
                self.activity.note_audio()
            return
        if self._admitted.is_file and not self._over.is_set():
            try:
                self._admitted.hold(len(samples))
            except GatewayError as error:
                self.fail(error)
                raise
        self.activity.has_audio = True  # before the push waits: a watch meanwhile knows that a segment is open
        self._report.pushed(samples)
        await self._call(self._upstream.push(samples))

    async def end_segment(self) -> None:
        """Ends the segment after the audio pushed so far. A Final with `forced` answers it, also for silence."""
        await self._call_at_end(self._upstream.end_segment())

    async def change(self, changes: Mapping[str, Any], options: LiveStreamOptions, forced: bool) -> None:
        """Ends the segment and goes on with other options; forced: as `end_segment`, else softly.

        changes: those of the server that differ.
        """
        upstream = self._upstream
        await self._call_at_end(upstream.end_segment(options=changes) if forced else upstream.change(changes))
        self.options = options  # only now: where the call fails, the next change is compared with the old ones
        if "endpoint_silence_ms" in changes:
            self.activity.pause_s = changes["endpoint_silence_ms"] / 1000

    async def finish(self) -> None:
        """No more audio follows. `events` ends after the Final with `is_last`."""
        self._is_finished = True  # before the call waits: a stop meanwhile changes nothing
        await self._call_at_end(self._upstream.finish())

    async def stop(self, error: GatewayError) -> None:
        """Takes no more audio: `events` brings the text of what was pushed and then raises the error.

        Does nothing to a stream that is finished. Calls to push wait until then.
        """
        if not self._over.is_set() and not self._is_finished:
            self._error, self._is_finished = error, True
            self._report.ending()
            with suppress(ClientError):  # it is lost: the reader of its events gets the reason
                await self._upstream.finish()

    async def cancel(self) -> None:
        """The client vanished: frees the stream on the server; no more events. Also after `finish`; never raises."""
        self._upstream.cancel()
        self._end("cancelled")

    def fail(self, error: GatewayError) -> None:
        """Ends the stream with an error: `events` and the next `push` raise it."""
        if not self._over.is_set():
            self._upstream.cancel()
            self._fail(error)

    async def events(self) -> AsyncIterator[Event]:
        """Partials and Finals in order. Raises GatewayError where the stream is lost."""
        try:
            async for result in self._upstream:
                if (event := self._event(result)) is not None:
                    yield event
        except ClientError as error:
            if isinstance(error, StreamClosedError) and self._over.is_set() and self._error is None:
                return  # cancelled
            raise self._fail(self._error or gateway_error(error)) from error
        if self._error is not None:
            raise self._fail(self._error)
        self._end("finished")

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on the audio and its text."""
        return self._report.remarks

    def note(self, remarks: Iterable[Remark]) -> None:
        """Takes all remarks on the audio so far; reports those that are new."""
        self._report.note(remarks)

    @property
    def replay_bytes(self) -> int:
        """Memory of the audio that a move would send again."""
        return self._upstream.replay_bytes

    async def watch(self, now_s: float) -> None:
        """Called regularly: parks, keeps open or moves the stream, and ends one that is too old or silent.

        With ends in pauses a segment ends, too, where no message comes: a client that is mute may send no silence.
        """
        self._admitted.add_audio(self._report.pop_audio_s())
        if self._over.is_set():
            return
        activity, age_s = self.activity, now_s - self.activity.started_s
        if age_s > limits.MAX_AGE_S:  # first: also of a stream whose last text does not come
            error = GatewayError(GatewayCode.STREAM_TOO_OLD, f"the stream is {limits.MAX_AGE_S / 3600:g} hours old")
            await self.stop(error)
            if age_s > limits.MAX_AGE_S + limits.UNRESPONSIVE_S:
                self.fail(error)
        elif self._is_finished:
            pass
        elif activity.is_gone(now_s):  # before it is parked: a client that is gone needs no slot later
            silence = f"no audio arrived for {activity.silent_s(now_s):.0f} s"
            await self.stop(GatewayError(GatewayCode.STREAM_IDLE, silence))
        elif activity.parks and activity.is_idle(now_s):
            self._upstream.park()
        elif activity.lacks_end(now_s):
            activity.has_audio = not self._upstream.end_softly()
        elif activity.take_keep_alive(now_s, self._keep_alive_s):
            await self._upstream.keep_open()
        self._note_parked()  # before it would leave: a parked stream is on no replica
        self._leave_if_draining()

    @property
    def _keep_alive_s(self) -> float:
        information = self._replica.information if self._replica is not None else None
        idle_s = information.idle_s if information is not None else limits.MAX_SILENT_S
        return min(limits.UNRESPONSIVE_S, idle_s / 3)

    def _event(self, result: StreamResult) -> Event | None:
        """The reported event of a result; None without a change."""
        self._report.result(result, self.start_s)
        event = self._segments.add(result)
        masks_as = self._masks_as
        if isinstance(event, Final):
            self._report.final(event)
            self._masks_as = self.options.masks
        elif event is not None:
            self._report.partial(result.round_trip_s)
        if event is None:
            return None
        if masks_as is not None and self.masks is not None:
            event = self.masks.event(event, result.language or masks_as)
        return placed(event, round(1000 * self.start_s), self.options.channel)

    async def _call_at_end(self, call: Awaitable[None]) -> None:
        """Awaits a call of the engine that ends the segment."""
        self._report.ending()  # before the call waits: the latency of a final counts from here
        self.activity.has_audio = False  # as early: a watch would end the segment a second time
        await self._call(call)

    async def _call(self, call: Awaitable[None]) -> None:
        """Awaits a call of the engine."""
        try:
            with self.activity:
                await call
        except ClientError as error:
            if self._error is not None:
                await self._over.wait()  # stopped: results come first
            raise self._fail(self._error or gateway_error(error)) from error

    def _fail(self, error: GatewayError) -> GatewayError:
        """The stream's error; the first one counts."""
        self._error = self._error or error
        self._end(self._error.code.name)
        return self._error

    def _end(self, reason: str) -> None:
        if self._over.is_set():
            return
        self._over.set()  # first: whatever follows may end it again
        if self._moving is not None:  # before the slot is given back: a move that ends now would take another one
            self._moving.cancel()
        if self._replica is not None:
            self._replica.release()
        self._admitted.add_audio(self._report.pop_audio_s())
        self._admitted.end()
        self._report.ended(reason)
        self._on_end(self)

    def _note_parked(self) -> None:
        """Replica and key have room for another stream where this one is away until audio comes."""
        if self._upstream.is_parked and self._replica is not None and not self._over.is_set():
            self._replica.release()
            self._replica = None
            self._admitted.uncount()

    async def moved(self) -> None:
        """Returns when no move is under way, also none that was cancelled."""
        if self._moving is not None:
            await asyncio.gather(self._moving, return_exceptions=True)

    def _note_lost(self, _: BatchedStream, error: ClientError) -> bool:
        """Called by the engine: the stream is on no server. True: it moves."""
        self._note_parked()  # before a slot is looked for: it would find its own one taken
        if self._replica is not None:
            self._replica.note_error(error)
        if not self._upstream.fingerprint:  # its server is an earlier version
            return False
        self._lost = error  # before the move starts, which reports it
        if self._moving is None or not self._has_turn:  # else the task that moves it goes on
            self._start_move()
        return True

    def _leave_if_draining(self) -> None:
        is_free = self._moving is None and not self._over.is_set()
        if is_free and self._replica is not None and self._replica.is_draining and self._upstream.fingerprint:
            self._start_move(self._replica.move_turns)

    def _start_move(self, turns: asyncio.Semaphore | None = None) -> None:
        if self._moving is not None:
            self._moving.cancel()
        self._has_turn = turns is None
        self._moving = asyncio.create_task(self._move(turns))

    async def _move(self, turns: asyncio.Semaphore | None) -> None:
        """Leaves a replica that drains, in its turn. Without turns, or where that is lost: to any that takes it."""
        try:
            if turns is not None:
                async with turns:
                    self._has_turn = True
                    await self._leave()
            while self._upstream.is_without_server:  # it may be lost again
                await self._rescue()
        finally:
            if self._moving is asyncio.current_task():  # else it has been replaced by that of a loss
                self._moving = None

    async def _leave(self) -> None:
        """To the first replica that takes the stream; where none does, it stays until the next round."""
        if self._upstream.is_parked:  # while it waited
            return
        for target in self._targets():
            try:
                return await target.move_here(self._upstream)
            except ClientError as error:
                self._lost = error
                if self._upstream.is_without_server:
                    return

    async def _rescue(self) -> None:
        """To the first replica that takes the stream within the engine's limit; else it fails with its loss."""
        name, url, fingerprint = self._upstream.name, self._upstream.server_url, self._upstream.fingerprint
        others = [each.information.fingerprint for each in self.group.replicas if each.information is not None]
        lost = OnlyOtherModelsError() if others and fingerprint not in others else self._lost
        if await move_to_any(self._upstream, lost, self._targets) is None and not self._over.is_set():
            log.warning("stream %s of %s is lost: %s", name, url, self._lost)

    def _targets(self) -> Iterator["_Target"]:
        """Replicas of the same model; that with the most room first. None while a parked one has no room in its key."""
        if self._replica is None and not self._admitted.has_room:
            return
        for replica in self.group.candidates(own=self._replica):
            if replica.information and replica.information.fingerprint == self._upstream.fingerprint:
                yield _Target(self, replica)

    async def move_to(self, replica: Replica) -> None:
        """Moves the stream to this replica, where it counts as live meanwhile. ClientError where that fails."""
        upstream, is_parked = self._upstream, self._replica is None
        name, url, replayed = upstream.name, upstream.server_url, upstream.moves.replayed_samples
        code = self._lost.code if upstream.is_without_server else "SERVER_DRAINING"
        if is_parked:  # before the move: another stream of the key could start meanwhile
            self._admitted.count()
        try:
            with replica.taking():
                await replica.client.move_here(upstream)
        except BaseException as error:
            if is_parked:
                self._admitted.uncount()
            if isinstance(error, ClientError) and not upstream.is_over:
                replica.note_error(error)
            raise
        if self._replica is not None:
            self._replica.release()
        self._replica, code = replica, _WOKEN if is_parked else code
        replayed_s = (upstream.moves.replayed_samples - replayed) / SAMPLE_RATE_HZ
        self._report.moved(replica.address, upstream.name, code, replayed_s)
        log.info("stream %s of %s is now %s of %s: %s", name, url, upstream.name, replica.address, code)


class _Target(NamedTuple):
    """A replica that a stream may move to, for the engine."""

    stream: ReplicaStream
    replica: Replica

    async def move_here(self, _: BatchedStream) -> None:
        await self.stream.move_to(self.replica)
