"""One server, with the links to its models and the streams on them; and how a lost stream finds a server."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from penstock_client import limits
from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.batched.call import check_certificates
from penstock_client.batched.link import Link
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import OnAnswer
from penstock_client.batched.server_offer import read_parameters_soon
from penstock_client.batched.stream import BatchedStream
from penstock_client.connection import Endpoint
from penstock_client.protocol import MODEL_NAME, SPEAKERS_MODEL_NAME
from penstock_common.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerDrainingError,
    ServerFullError,
    ServerReplyError,
    SpeakersNotServedError,
    StreamClosedError,
)
from penstock_common.options import SPEAKER_FILE, Parameter
from penstock_common.samples import SAMPLE_RATE_HZ
from penstock_common.server_info import FINGERPRINT, SPEAKERS, ServerInfo, parse_server_info, takes_files

log = logging.getLogger("penstock_client")
LOST = (ConnectionLostError.code, ReplyTimeoutError.code, ProtocolError.code)
"""The codes of errors of a stream whose server is lost, or replies what cannot be read."""


class _Route(NamedTuple):
    """The call that carries a stream. Replies of a call come in order: a slow model delays no other route."""

    model: str = MODEL_NAME
    slow_s: float = 0.0
    """For a reply of a server that is alive; 0 where that is the client's."""


_PLAIN, _SPEAKERS = _Route(), _Route(SPEAKERS_MODEL_NAME)
_SPEAKERS_OF_FILES = _Route(SPEAKERS_MODEL_NAME, limits.SPEAKER_FILE_S)


class Probe(NamedTuple):
    """The findings of an empty stream about a server that is alive."""

    information: ServerInfo
    """The server's offer when it was connected to."""
    is_full: bool
    is_draining: bool


class StreamSettings(NamedTuple):
    """The treatment of a client's streams."""

    max_unanswered_samples: int
    aligns: bool
    """Whole chunks are sent."""
    max_replay_samples: float = 0
    """Kept of each stream, so that it can be moved."""
    min_speaker_replay_samples: float = limits.REPLAY_S * SAMPLE_RATE_HZ
    """Kept at least of one with speakers, which has to move where only the speaker model fails."""


class Server:
    """Streams on one server. For one event loop."""

    def __init__(self, endpoint: Endpoint, settings: StreamSettings, slow_s: float = 0.0):
        """slow_s: time without a reply for a server that is alive; beyond the endpoint's timeout.

        ValueError for bad certificates.
        """
        check_certificates(endpoint)
        self.endpoint = endpoint
        self._is_offer_known = False
        self.parameters: Mapping[str, str] = {}
        """The server's offer; empty until it was reached."""
        self._settings, self._slow_s = settings, slow_s
        self.geometry: ChunkGeometry | None = None
        """The chunks of its model; None where they are not known."""
        self._links: dict[_Route, Link] = {}
        self._connecting: asyncio.Task[None] | None = None
        """The attempt to connect that all streams opened meanwhile wait for, and fail with."""
        self._moves: set[asyncio.Task[object]] = set()
        """Moves of streams that the speaker model has lost, and that have no other way."""
        self._is_closed = False
        self.down_until_s = 0.0
        """A time of the monotonic clock. A server that was lost or not reached is the last choice until then."""

    @property
    def live(self) -> int:
        """Number of its streams."""
        return sum(link.live for link in self._links.values())

    async def open(self, parameters: Mapping[str, Parameter], on_answer: OnAnswer | None = None) -> BatchedStream:
        """A new stream, whose start is still to be sent.

        ClientError where the server is not reached, SpeakersNotServedError for one with speakers without a speaker
        model.
        """
        route, settings = _route(parameters), self._settings
        link = await self._link(route)
        has_speakers = route is not _PLAIN
        most = settings.max_replay_samples
        if has_speakers:
            most = max(most, settings.min_speaker_replay_samples) + limits.SPEAKER_CONTEXT_S * SAMPLE_RATE_HZ
        stream = BatchedStream(
            link,
            parameters,
            self.geometry if settings.aligns else None,
            settings.max_unanswered_samples,
            on_answer,
            replay=Replay(max_samples=most, has_speakers=has_speakers) if most else None,
            polls=takes_files(self.parameters),
        )
        stream.fingerprint = self.parameters.get(FINGERPRINT, "")
        stream.has_speakers = has_speakers
        if has_speakers:
            stream.on_lost = self.note_speakers_lost
        return stream

    def note_speakers_lost(self, stream: BatchedStream, error: ClientError) -> bool:
        """Moves a running stream that only the speaker model has lost: an `OnLost` of streams without another way."""
        if not (error.of_speakers and stream.is_accepted) or self._is_closed:
            return False
        task = asyncio.create_task(move_to_any(stream, error, lambda: [self]))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)
        return True

    async def move_here(self, stream: BatchedStream) -> None:
        """Moves a stream here (`BatchedStream.move`). ServerReplyError where this server is not the same.

        SpeakersNotServedError where the stream keeps its speakers, and there are none here.
        """
        keeps_speakers = stream.keeps_speakers
        # Before the fingerprints are compared: it reads what the server that is there now offers.
        link = await self._link(_route(stream.parameters) if keeps_speakers else _PLAIN)
        is_known = bool(stream.fingerprint) or stream.server_url == self.endpoint.url
        if not is_known or self.parameters.get(FINGERPRINT, "") != stream.fingerprint:
            raise ServerReplyError(f"the server at {self.endpoint.url} serves another model, or another version")
        try:
            await stream.move(link, self.geometry, keeps_speakers)
        except ClientError as error:
            if error.code in LOST and not error.of_speakers:
                self.note_down()
            raise

    def forget_offer(self) -> None:
        """Reads the server's offer again before the next stream: another server may be at the address."""
        self._is_offer_known = False

    def note_down(self) -> None:
        """Notes that it was lost, or not reached."""
        self.down_until_s = time.monotonic() + limits.DOWN_S

    async def probe(self) -> Probe:
        """Sends an empty stream in one row through all models of the server.

        Triton says that it is ready, and tells of its models, also when their processes have ended. Raises ClientError
        where no model answers, and ServerReplyError for a server that does not say what it offers.
        """
        link = await self._link(_PLAIN)
        error = await _rejection(link)
        try:
            information = parse_server_info(self.parameters)
        except (KeyError, ValueError) as wrong:
            self.forget_offer()
            message = f"the server at {self.endpoint.url} does not say what it offers ({wrong})"
            raise ServerReplyError(message) from wrong
        return Probe(information, isinstance(error, ServerFullError), isinstance(error, ServerDrainingError))

    async def is_alive(self) -> bool:
        """True if it answers an empty stream over a connection of its own; also where this process was stalled."""
        link = Link(replace(self.endpoint, timeout_s=limits.ALIVE_S))
        begin_s = link.now_s()
        try:
            await _rejection(link)
        except ClientError:
            return link.now_s() - begin_s > limits.ALIVE_S + limits.STALL_S
        finally:
            await link.close(at_once=True)
        return True

    async def close(self) -> None:
        """Ends the remaining streams and the connection."""
        # First: tasks that wait for a link end, and open no other one.
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        for move in self._moves:
            move.cancel()
        await asyncio.gather(*self._moves, *(link.close() for link in self._links.values()), return_exceptions=True)
        self._links.clear()

    async def _link(self, route: _Route) -> Link:
        """The link of a route, to a server whose offer is known. SpeakersNotServedError where that has none."""
        while not self._is_closed:
            # After each wait again: the attempt may have failed, or its link be lost by now.
            link = self._links.get(route)
            if self._is_offer_known and (link is None or not link.is_lost):
                if route is not _PLAIN and SPEAKERS not in self.parameters:
                    raise SpeakersNotServedError
                return link or self._open_link(route)
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
                self._connecting.add_done_callback(self._note_attempt)
            try:
                await asyncio.shield(self._connecting)  # a cancelled caller does not cancel the attempt of the others
            except asyncio.CancelledError:
                if not self._is_closed:
                    raise
        raise StreamClosedError(0, "the client is closed")

    def _open_link(self, route: _Route) -> Link:
        beside = next((link for link in self._links.values() if not link.is_lost), None)
        endpoint, slow_s = replace(self.endpoint, model=route.model), max(self._slow_s, route.slow_s)
        link = self._links[route] = Link(endpoint, self.is_alive, slow_s, beside)
        return link

    async def _connect(self) -> None:
        """Closes what is lost, and reads the server's offer again."""
        # Until it is read again no stream may start: another server may be at the address.
        self._is_offer_known = False
        for route, link in list(self._links.items()):
            if link.is_lost:
                del self._links[route]
                # Returns when the slots of its streams are free, if the server is alive: the next ones may need them.
                await link.close()
        self.parameters = await read_parameters_soon(self.endpoint)
        self.geometry, self._is_offer_known = read_geometry(self.parameters), True

    def _note_attempt(self, attempt: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # those that wait for it report it; without this, asyncio does where there are none


def _route(parameters: Mapping[str, Parameter]) -> _Route:
    """The route of a stream with these options."""
    if "speakers" not in parameters:
        return _PLAIN
    return _SPEAKERS_OF_FILES if parameters.get("speaker_mode") == SPEAKER_FILE else _SPEAKERS


async def _rejection(link: Link) -> ClientError | None:
    """Why the server, which is alive, accepts no stream: an empty one was sent. Raises ClientError where it is not."""
    stream = BatchedStream(link, {}, None, 1)
    try:
        await stream.finish()
        async for _ in stream:
            pass
    except (ServerFullError, ServerDrainingError) as rejection:
        return rejection
    finally:
        stream.cancel()
    return None


class Target(Protocol):
    """A place that a stream can move to."""

    async def move_here(self, stream: BatchedStream) -> None:
        """Moves it here. ClientError where that fails."""


T = TypeVar("T", bound=Target)


async def move_to_any(
    stream: BatchedStream, lost: ClientError, targets: Callable[[], Iterable[T]], limit_s: float | None = None
) -> T | None:
    """Moves a lost stream to the first target that takes it; after the limit it fails with its loss.

    targets: the best first; called for each attempt. limit_s: by default `limits.MOVE_S`. Returns the target, None
    where the stream is over. One with speakers goes on without them where no target has a speaker model that answers.
    """
    deadline_s = time.monotonic() + (limits.MOVE_S if limit_s is None else limit_s)
    pause_s = limits.FIRST_PAUSE_S
    try:
        while stream.is_without_server:
            # Before the attempt: one is made after the limit, too, so that the shortest limit has one.
            is_last = time.monotonic() >= deadline_s
            target, is_full = await _move_once(stream, targets())
            if target is None and stream.keeps_speakers and (is_last or not is_full):
                stream.moves.may_lose_speakers = True
                target, _ = await _move_once(stream, targets())
                stream.moves.may_lose_speakers = False
                if target is not None:
                    log.warning("stream %s goes on without speakers: %s", stream.name, lost)
            if target is not None or is_last:
                return target
            if stream.is_without_server:
                # At random: all streams of a lost server look for another one at the same time.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, limits.LONGEST_PAUSE_S)
    except StreamClosedError:  # it is over, or too long since its last border: nowhere
        pass
    finally:
        stream.moves.may_lose_speakers = False  # also where the attempt was cancelled
        if stream.is_without_server:
            stream.give_up(lost)
    return None


async def _move_once(stream: BatchedStream, targets: Iterable[T]) -> tuple[T | None, bool]:
    """The first target that takes the stream, and whether one may do so once it has room. Raises StreamClosedError."""
    is_full = False
    for target in targets:
        # It may have ended while the target before was tried.
        if not stream.is_without_server:
            break
        try:
            await target.move_here(stream)
            return target, False
        except StreamClosedError:
            raise
        except ClientError as error:
            log.debug("stream %s cannot go on there: %s", stream.stream_id, error)
            is_full |= isinstance(error, ServerFullError | ServerDrainingError) and not error.of_speakers
    return None, is_full
