"""Opens live streams on the replicas, and watches over them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock_client import BatchedStream
from penstock_client.batched.rows import MOVABLE
from penstock_common.errors import (
    ClientError,
    ServerDrainingError,
    ServerFullError,
    ServerReplyError,
    SpeakersNotServedError,
    StreamClosedError,
    shown,
)
from penstock_common.options import CHANGEABLE, StreamOptions, is_live_window
from penstock_gateway import limits
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.activity import Activity
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.failures import gateway_error
from penstock_gateway.stream.masks import WordMasks
from penstock_gateway.stream.metrics import Metrics, StreamReport
from penstock_gateway.stream.options import (
    LiveStreamOptions,
    ModelGroup,
    is_of_openai,
    segments_of,
    upstream_options,
    window_s,
)
from penstock_gateway.stream.replica_stream import ReplicaStream
from penstock_gateway.stream.replicas import Group, Replica
from penstock_gateway.tracing import current_request_id

log = logging.getLogger(__name__)
_MAX_NAME = 80
_FULL = (ServerFullError, ServerDrainingError)
_ELSEWHERE = (ServerReplyError, SpeakersNotServedError, StreamClosedError)
"""Beside `MOVABLE`: another replica may accept the stream, also after an error of a server whose models are dead."""


class ReplicaStreams:
    """Opens live streams on groups of replicas. Made and used in one event loop, between `start` and `close`."""

    def __init__(self, config: Config, admission: Admission, metrics: Metrics, masks: WordMasks | None = None):
        self._config, self._admission, self._metrics, self._masks = config, admission, metrics, masks
        self._groups = [
            Group(group, config.timeout_s, config.longest_segment_s, config.live_window, metrics.note_file)
            for group in config.replicas
        ]
        self._streams: set[ReplicaStream] = set()
        self.sessions: set[object] = set()
        """Open sessions that have had a stream: between two streams they are live, too."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False

    async def start(self) -> None:
        """Asks every replica once, and from then on regularly."""
        await self._discover()
        await self._probe()  # before the ports open: the first client finds replicas
        works = _every(limits.TICK_S, self._discover), _every(limits.PROBE_S, self._probe), self._watch()
        self._tasks = [asyncio.create_task(work) for work in works]

    async def close(self) -> None:
        """Ends all streams."""
        for task in self._tasks:  # before the streams: a watch could start moves
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        moving = [stream.moved() for stream in self._streams]  # before the cut, which takes them from the set
        self.cut()
        await asyncio.gather(*moving)
        # After the moves: a closed client would fail them, which counts its replica as down.
        await asyncio.gather(*(group.close() for group in self._groups))

    def drain(self) -> None:
        """Accepts no more streams."""
        self._is_draining = True

    async def finish(self) -> None:
        """Ends the audio of all streams: their text still arrives, then STREAM_LOST."""
        await asyncio.gather(*(stream.stop(_stopping()) for stream in list(self._streams)), return_exceptions=True)

    def cut(self) -> None:
        """Fails the streams that are left with STREAM_LOST."""
        for stream in list(self._streams):
            stream.fail(_stopping())

    @property
    def live(self) -> int:
        """Live streams of this process."""
        return len(self._streams)

    @property
    def groups(self) -> Sequence[ModelGroup]:
        """The groups with a replica that answers, the default first."""
        if self._is_draining:
            return []
        return [group.model for group in self._groups if group.model is not None and group.is_up]

    def group(self, model: str) -> ModelGroup:
        """The group of this name, or the first for "" and OpenAI's names; where it is the only one, for any name.

        Raises GatewayError: MODEL_NOT_FOUND, or NO_REPLICA until a replica of it has answered.
        """
        return self._find(model)[1]

    def check(self, options: LiveStreamOptions) -> None:
        """Raises GatewayError where no stream can have these options: `open` or `change` would."""
        model = self._find(options.model)[1]
        if self._config.strict and (unwritable := model.unwritable(text for text, _ in options.phrases)):
            message = f"the model cannot write {shown(unwritable[0])}, and this gateway is strict; accepted: others"
            raise GatewayError(GatewayCode.FIELD_INVALID, message)
        self._upstream_options(options, model)

    def check_room(self, key: ApiKey, streams: int = 1) -> None:
        """Raises GatewayError where `streams` would not all be admitted now: STREAMS_EXHAUSTED, NO_REPLICA."""
        self._check_running()
        self._admission.check(key, streams)
        if not any(group.candidates() for group in self._groups):
            raise _no_room(any(group.is_up for group in self._groups))

    async def open(self, options: LiveStreamOptions, key: ApiKey, protocol: str) -> ReplicaStream:
        """Starts a stream on the replica with the most room; `protocol` names it in metrics and logs.

        Raises GatewayError: FIELD_INVALID for options that the server rejects, FILES_ONLY for live audio to an offline
        model without live streams, SPEAKERS_NOT_SERVED, STREAMS_EXHAUSTED, NO_REPLICA.
        """
        if not options.in_session:
            self._check_running()
        group, model = self._find(options.model)
        start_options = self._upstream_options(options, model)
        self._check_memory()  # before the stream counts: a rejected one takes nothing of its key's quota
        live_s = window_s(start_options.window)
        held_s = (live_s or None) if model.windows else 0.0
        admitted = self._admission.admit(key, group, held_s)
        try:
            replica, upstream = await _start_upstream(group, start_options)
        except BaseException:
            admitted.end()
            raise
        report = StreamReport(
            self._metrics, protocol, key.name, model, replica.address, upstream.name, current_request_id()
        )
        is_live = not options.is_file
        pause_s = (start_options.endpoint_silence_ms or 0) / 1000 * is_live
        activity = Activity(self._config.idle_seconds, is_live and upstream.can_park, pause_s)
        stream = ReplicaStream(upstream, group, replica, admitted, options, report, activity, self._streams.remove)
        stream.masks = self._masks
        self._streams.add(stream)  # no await since it was accepted: a loss from here on finds its `on_lost`
        return stream

    def _upstream_options(self, options: LiveStreamOptions, model: ModelGroup) -> StreamOptions:
        if not options.is_file and not is_live_window(options.extra.get("window")):
            model.check_live()
            if model.live_window is not None:
                options = replace(options, extra={**options.extra, "window": model.live_window})
        ignores_unknown = model.alphabet is not None and not self._config.strict
        needs_no_border = bool(model.windows) and options.is_file  # else a move can begin from one
        longest_s = 0 if needs_no_border else self._config.longest_segment_s
        return upstream_options(options, self._config.endpoint_state, ignores_unknown, longest_s)

    async def change(
        self, stream: ReplicaStream, options: LiveStreamOptions, forced: bool = False
    ) -> Mapping[str, Any] | None:
        """An open stream goes on with these options after the end of its segment, if any differ; returns those.

        forced: as in `ReplicaStream.change`. None, and nothing happens, where another stream would be needed. Raises
        GatewayError as `open` does.
        """
        group, model = self._find(options.model)
        if stream not in self._streams or stream.group is not group:
            return None
        self.check(options)  # before the segment ends: wrong options change nothing
        before, after = dict(self._upstream_options(stream.options, model)), self._upstream_options(options, model)
        changes = {name: value for name, value in after if value != before[name]}
        if "boosted_phrases" in changes or not after.boosted_phrases:
            changes.pop("unknown_phrases", None)
            ignores_unknown = bool(after.boosted_phrases) and after.unknown_phrases is not None
            changes |= {"unknown_phrases": after.unknown_phrases} if ignores_unknown else {}
        has_other_ends = segments_of(options).rule != segments_of(stream.options).rule
        if has_other_ends or not changes.keys() <= set(CHANGEABLE) or None in changes.values():
            return None
        if changes:
            await stream.change(changes, options, forced)
        else:
            stream.options = options  # they may differ in what the server does not know
        return changes

    def _check_memory(self) -> None:
        """New streams are rejected where the audio that moves would need has filled its memory; live ones go on."""
        if self._replay_bytes() >= self._config.replay_mib << 20:
            message = f"the audio of live streams fills {self._config.replay_mib} MiB"
            raise GatewayError(GatewayCode.OVERLOADED, message)

    def _replay_bytes(self) -> int:
        return sum(stream.replay_bytes for stream in self._streams)

    def _check_running(self) -> None:
        if self._is_draining:
            raise _stopping(GatewayCode.NO_REPLICA)

    def _find(self, name: str) -> tuple[Group, ModelGroup]:
        groups, first = {group.name: group for group in self._groups}, self._groups[0]
        is_only = len(groups) == 1 and not self._config.strict
        is_first = is_only or is_of_openai(name) or not name or not first.name  # without a name it is the only one
        group = groups.get(name, first if is_first else None)
        if group is None:
            message = f"there is no model {name[:_MAX_NAME]!r}; accepted: {', '.join(groups)}"
            raise GatewayError(GatewayCode.MODEL_NOT_FOUND, message, "model")
        if group.model is None:
            raise _no_room(is_full=False)
        return group, group.model

    async def _discover(self) -> None:
        await asyncio.gather(*(_logged(group.discover(time.monotonic()), group) for group in self._groups))

    async def _probe(self) -> None:
        await asyncio.gather(*(_logged(group.probe(), group) for group in self._groups))
        for group in self._groups:
            if group.model is not None:
                up = sum(each.information is not None and not each.is_spare for each in group.replicas)
                self._metrics.replicas_up.labels(group.model.name).set(up)

    async def _watch(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(limits.TICK_S)
            now_s = time.monotonic()
            late_s, last_s = now_s - last_s - limits.TICK_S, now_s
            for stream in list(self._streams):
                if late_s > limits.TICK_S / 2:  # before its silence is measured: the process was stopped
                    stream.activity.note_stall(late_s)
                await stream.watch(now_s)
            self._metrics.replay_bytes.set(self._replay_bytes())


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await work()


async def _logged(round_of_group: Awaitable[None], group: Group) -> None:
    """A defect in it ends neither the next rounds nor those of other groups."""
    try:
        await round_of_group
    except Exception:
        log.exception("the replicas of group %r stay as they are", group.name)


async def _start_upstream(group: Group, options: StreamOptions) -> tuple[Replica, BatchedStream]:
    """The first replica that accepts the stream; it counts as live there. GatewayError if none does.

    One that fails only at the model `speakers` still takes streams that do not ask for it.
    """
    of_speakers: list[ClientError] = []
    for replica in group.candidates():
        try:
            with replica.taking():
                return replica, await replica.start(options)
        except ClientError as error:
            if error.code not in MOVABLE and not isinstance(error, _ELSEWHERE):
                raise gateway_error(error) from error
            if error.of_speakers:
                of_speakers.append(error)
            elif isinstance(error, _FULL):
                replica.note_full()
            else:
                replica.note_down(error.text)
    if others := [error for error in of_speakers if not isinstance(error, SpeakersNotServedError)]:
        raise _no_room(any(isinstance(error, _FULL) for error in others), "speaker model")
    if of_speakers and not group.may_have_speakers:
        raise gateway_error(of_speakers[0])
    raise _no_room(group.is_up)


def _stopping(code: GatewayCode = GatewayCode.STREAM_LOST) -> GatewayError:
    return GatewayError(code, "the gateway is stopping")


def _no_room(is_full: bool, what: str = "replica") -> GatewayError:
    """Why no replica accepts a stream, or no speaker model of a replica."""
    if is_full:
        return GatewayError(GatewayCode.STREAMS_EXHAUSTED, f"all {what}s are full")
    return GatewayError(GatewayCode.NO_REPLICA, f"no {what} answers")
