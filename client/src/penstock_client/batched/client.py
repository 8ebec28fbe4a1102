"""The client of `asr_batch`: many live streams over one call per server, whose chunks share requests."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from penstock_client import limits
from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.batched.call import check_certificates
from penstock_client.batched.link import Link
from penstock_client.batched.rows import MODEL_NAME, MOVABLE, OnAnswer
from penstock_client.batched.stream import BatchedStream
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerDrainingError,
    ServerFullError,
    ServerReplyError,
    ServerUnreachableError,
    SpeakersNotServedError,
    StreamClosedError,
)
from penstock_client.options import SpeakerSettings, StreamOptions, parameters_of, speaker_settings
from penstock_client.protocol import SAMPLE_RATE_HZ, Parameter
from penstock_client.server_info import FINGERPRINT, ServerInfo, parse_server_info, takes_files
from penstock_client.speakers.link import SpeakerLink
from penstock_client.transport.replay import Replay
from penstock_client.transport.server_offer import read_parameters_soon

LOST = (ConnectionLostError.code, ReplyTimeoutError.code, ProtocolError.code)
"""The codes of errors of a stream whose server is lost, or replies what cannot be read."""


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
        self._geometry: ChunkGeometry | None = None
        self._link: Link | None = None
        self._speakers = SpeakerLink(endpoint, self.is_alive, slow_s)
        self._connecting: asyncio.Task[None] | None = None
        """The attempt to connect that all streams opened meanwhile wait for, and fail with."""
        self._is_closed = False
        self.down_until_s = 0.0
        """A time of the monotonic clock. A server that was lost or not reached is the last choice until then."""

    @property
    def geometry(self) -> ChunkGeometry | None:
        """The chunks of its model; None where they are not known."""
        return self._geometry

    @property
    def live(self) -> int:
        """Number of its streams."""
        return self._link.live if self._link is not None else 0

    async def open(
        self,
        parameters: Mapping[str, Parameter],
        speakers: SpeakerSettings | None = None,
        on_answer: OnAnswer | None = None,
    ) -> BatchedStream:
        """A new stream, whose start is still to be sent. ClientError where the server is not reached.

        One with speakers is accepted when this returns, by the speaker model first: SpeakersNotServedError where there
        is none.
        """
        link, settings = await self._connect(), self._settings
        most = settings.max_replay_samples
        track = None
        if speakers is not None:
            track = self._speakers.track(speakers)
            try:
                await track.open()
                link = await self._connect()  # the first one may be lost meanwhile
            except BaseException:
                track.cancel()
                raise
        stream = BatchedStream(
            link,
            parameters,
            self._geometry if settings.aligns else None,
            settings.max_unanswered_samples,
            on_answer,
            replay=Replay(max_samples=most) if most else None,
            polls=takes_files(self.parameters),
        )
        stream.fingerprint = self.parameters.get(FINGERPRINT, "")
        if track is not None:
            stream.track, track.keep_open = track, stream.keep_open
            try:
                stream.start()
                await stream.accepted()  # else it would move to a server that does not know its speakers
            except BaseException:
                stream.cancel()
                raise
        return stream

    async def move_here(self, stream: BatchedStream) -> None:
        """Moves a stream here (`BatchedStream.move`). ServerReplyError where this server is not the same."""
        link = await self._connect()
        is_known = bool(stream.fingerprint) or stream.server_url == self.endpoint.url
        if not is_known or self.parameters.get(FINGERPRINT, "") != stream.fingerprint:
            raise ServerReplyError(f"the server at {self.endpoint.url} serves another model, or another version")
        try:
            await stream.move(link, self._geometry)
        except ClientError as error:
            if error.code in LOST:
                self.note_down()
            raise
        if (track := stream.track) is not None and not self._speakers.has(track):
            track.cancel(ConnectionLostError("speakers", f"the stream has moved to the server at {self.endpoint.url}"))

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
        link = await self._connect()
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
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._speakers.close()

    async def _connect(self) -> Link:
        """The link to the server, whose offer is known; connects where there is none, or where it was lost."""
        while not self._is_closed:
            if self._link is not None and not self._link.is_lost and self._is_offer_known:
                return self._link
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._open_link())
                self._connecting.add_done_callback(self._note_attempt)
            try:
                await asyncio.shield(self._connecting)  # a cancelled caller does not cancel the attempt of the others
            except asyncio.CancelledError:
                if not self._is_closed:
                    raise
        raise StreamClosedError(0, "the client is closed")

    async def _open_link(self) -> None:
        if self._link is not None and self._link.is_lost:
            await self._link.close()
            self._link = None
        self.parameters = await read_parameters_soon(self.endpoint)
        self._geometry, self._is_offer_known = read_geometry(self.parameters), True
        if self._link is None:
            self._link = Link(self.endpoint, self.is_alive, self._slow_s)

    def _note_attempt(self, attempt: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # those that wait for it report it; without this, asyncio does where there are none


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


log = logging.getLogger("penstock_client")


class BatchedClient:
    """Carries any number of streams to the server at `url`, the host:port of its gRPC port. For one event loop.

    When replies slow down, it sends fewer, larger requests: rows of more streams share one. The gap between requests is
    half of the extra delay, at most 250 ms. The extra delay is the newest round trip, or the age of the oldest
    unanswered request if that is longer, minus the shortest round trip so far.
    Where the server is lost, or leaves a request unanswered for `timeout_s`, all streams fail; the next `open_stream`
    connects anew. With several urls, streams start on the server with the fewest of them, and go on at another one of
    the same model where theirs is lost: their current segment is sent again, and nothing that was received is repeated.
    A server that leaves requests unanswered, but answers an empty stream, has `slow_s`, if that is longer.
    `max_replay_s` of audio are kept per stream for a move: by default 120 with several urls, else 0; any other value is
    at least `max_unanswered_s`. Raises ValueError for an invalid url, protocol, certificate file, number or connection
    option.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = limits.TIMEOUT_S,
        connection_options: ConnectionOptions | None = None,
        max_unanswered_s: float = 2.0,
        align: bool = True,
        slow_s: float = 0.0,
        max_replay_s: float | None = None,
    ):
        urls = (url,) if isinstance(url, str) else tuple(url)
        if not urls:
            raise ValueError("url is empty, expected one host:port or several")
        options = connection_options or ConnectionOptions()
        endpoints = [Endpoint(each, protocol, MODEL_NAME, timeout_s, options) for each in urls]
        if not 0 < max_unanswered_s <= limits.MAX_UNANSWERED_S:
            accepted = f"above 0, up to {limits.MAX_UNANSWERED_S:g}"
            raise ValueError(f"max_unanswered_s is {max_unanswered_s!r}, expected {accepted}")
        if not 0 <= slow_s < math.inf:
            raise ValueError(f"slow_s is {slow_s!r}, expected 0 or more")
        if max_replay_s and not max_unanswered_s <= max_replay_s < math.inf:
            raise ValueError(f"max_replay_s is {max_replay_s!r}, expected 0, or max_unanswered_s or more")
        for name in ("wait_for_slot_s", "reconnect_s"):
            if getattr(options, name):
                raise ValueError(f"{name} is set, but BatchedClient does not have it: use Client")
        self.url = ",".join(urls)
        replay_s = max_replay_s if max_replay_s is not None else limits.REPLAY_S if len(urls) > 1 else 0.0
        samples = max(1, round(max_unanswered_s * SAMPLE_RATE_HZ))
        settings = StreamSettings(samples, align, round(replay_s * SAMPLE_RATE_HZ))
        self._servers = [Server(endpoint, settings, slow_s) for endpoint in endpoints]
        self._moves: dict[asyncio.Task[None], tuple[BatchedStream, ClientError]] = {}
        """The stream of each move, and why it is lost."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def open_stream(
        self, options: StreamOptions | None = None, on_answer: OnAnswer | None = None
    ) -> BatchedStream:
        """A new stream, whose start is sent at once; its `accepted` waits for the answer.

        The first one reads where the model's chunks end and connects. One with speakers is accepted when this returns,
        by a server whose model `speakers` accepts it, too. Raises ServerUnreachableError, ServerReplyError for a server
        without the model `asr_batch`, and the error of a rejection: SpeakersNotServedError only where no server has the
        model `speakers`.
        """
        failures: list[ClientError] = []
        for server in self._by_room():
            try:
                stream = await server.open(parameters_of(options), speaker_settings(options), on_answer)
                if not stream.rows:
                    stream.start()
                return self._watched(stream, server)
            except ClientError as error:
                failures.append(error)
                if error.of_speakers:
                    continue
                if error.code not in MOVABLE:
                    raise
                if error.code in LOST or isinstance(error, ServerUnreachableError):
                    server.note_down()
        others = [error for error in failures if not isinstance(error, SpeakersNotServedError)]
        raise (others or failures)[-1]

    async def probe(self) -> Probe:
        """Probes the first server, like `Server.probe`."""
        return await self._servers[0].probe()

    async def move_here(self, stream: BatchedStream) -> None:
        """Moves a stream of another client to the first server, like `Server.move_here`."""
        await self._servers[0].move_here(stream)

    async def close(self) -> None:
        """Ends the remaining streams and the connections."""
        self._is_closed = True
        moves = dict(self._moves)
        for task in moves:
            task.cancel()
        await asyncio.gather(*moves, return_exceptions=True)
        for stream, error in moves.values():
            if stream.is_without_server:  # its task had not begun
                stream.give_up(error)
        await asyncio.gather(*(server.close() for server in self._servers))

    async def __aenter__(self) -> "BatchedClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _by_room(self) -> list[Server]:
        now_s = time.monotonic()
        return sorted(self._servers, key=lambda server: (max(server.down_until_s, now_s), server.live))

    def _watched(self, stream: BatchedStream, server: Server) -> BatchedStream:
        """The stream, which is on this server: it moves where that is lost."""
        if len(self._servers) > 1:
            stream.on_lost = partial(self._note_lost, server)
        return stream

    def _note_lost(self, server: Server, stream: BatchedStream, error: ClientError) -> bool:
        if error.code in LOST:
            server.note_down()
        if self._is_closed:
            return False
        task = asyncio.create_task(self._move(stream, error))
        self._moves[task] = stream, error
        task.add_done_callback(self._moves.pop)
        return True

    async def _move(self, stream: BatchedStream, error: ClientError) -> None:
        server = await move_to_any(stream, error, self._by_room)
        if server is not None:
            self._watched(stream, server)


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
    where the stream is over.
    """
    deadline_s = time.monotonic() + (limits.MOVE_S if limit_s is None else limit_s)
    pause_s = limits.FIRST_PAUSE_S
    try:
        while stream.is_without_server:
            for target in targets():
                try:
                    await target.move_here(stream)
                    return target
                except StreamClosedError:  # too long since its last border: nowhere
                    return None
                except ClientError as error:
                    log.debug("stream %s cannot go on there: %s", stream.stream_id, error)
                if not stream.is_without_server:
                    return None
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, limits.LONGEST_PAUSE_S)
    finally:
        if stream.is_without_server:
            stream.give_up(lost)
    return None
