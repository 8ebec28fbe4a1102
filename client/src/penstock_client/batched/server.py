"""One server of `asr_batch`: its link, what it offers, and whether it is alive."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.batched.link import ALIVE_S, STALL_S, Link
from penstock_client.batched.results import OnAnswer
from penstock_client.batched.rows import Part
from penstock_client.batched.stream import BatchedStream
from penstock_client.connection import Endpoint
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerDrainingError,
    ServerFullError,
    ServerReplyError,
    StreamClosedError,
)
from penstock_client.options import StreamOptions, parameters_of
from penstock_client.server_info import FINGERPRINT, ServerInfo, parse_server_info, takes_files
from penstock_client.speakers.settings import speaker_settings
from penstock_client.speakers.wire import SpeakerLink
from penstock_client.transport.model_config import read_parameters
from penstock_client.transport.replay import Replay

_DOWN_S = 5.0
LOST = (ConnectionLostError.code, ReplyTimeoutError.code, ProtocolError.code)
"""The codes of errors of a stream whose server is lost, or replies what cannot be read."""


class Probe(NamedTuple):
    """What an empty stream has shown of a server that is alive."""

    information: ServerInfo
    """As of the connection."""
    is_full: bool
    is_draining: bool


class StreamSettings(NamedTuple):
    """Of the streams of a client."""

    max_unanswered_samples: int
    aligns: bool
    """Whole chunks are sent."""
    max_replay_samples: int = 0
    """Kept of each stream, so that it can be moved."""


class Server:
    """Streams on one server. For one event loop."""

    def __init__(self, endpoint: Endpoint, settings: StreamSettings, slow_s: float = 0.0):
        """slow_s: time without a reply for a server that is alive; beyond the endpoint's timeout."""
        self.endpoint = endpoint
        self.parameters: Mapping[str, str] = {}
        """What it offers; empty until it was reached."""
        self._settings, self._slow_s = settings, slow_s
        self._geometry: ChunkGeometry | None = None
        self._link: Link | None = None
        self._speakers = SpeakerLink(endpoint, self.is_alive, slow_s)
        self._connecting: asyncio.Task[None] | None = None
        """The attempt to connect that all streams opened meanwhile wait for, and fail with."""
        self._is_closed = False
        self.down_until_s = 0.0
        """Of the monotonic clock: one that was lost or not reached is the last choice until then."""

    @property
    def live(self) -> int:
        """Its streams."""
        return self._link.live if self._link is not None else 0

    async def open(self, options: StreamOptions | None, on_answer: OnAnswer | None = None) -> BatchedStream:
        """A new stream, whose start is sent at once. ClientError where the server is not reached.

        One with speakers is accepted when this returns, by the speaker model first: SpeakersNotServedError where there
        is none.
        """
        link, settings = await self._connect(), self._settings
        most = settings.max_replay_samples
        track = None
        if (speakers := speaker_settings(options)) is not None:
            track = self._speakers.track(speakers)
            try:
                await track.open()
                link = await self._connect()  # the first one may be lost meanwhile
            except BaseException:
                track.cancel()
                raise
        stream = BatchedStream(
            link,
            parameters_of(options),
            self._geometry if settings.aligns else None,
            settings.max_unanswered_samples,
            on_answer,
            replay=Replay[Part](max_samples=most) if most else None,
            polls=takes_files(self.parameters),
        )
        stream.fingerprint = self.parameters.get(FINGERPRINT, "")
        if track is not None:
            stream.track, track.keep_open = track, stream.keep_open
            try:
                await stream.accepted()  # else it would move to a server that does not know its speakers
            except BaseException:
                stream.cancel()
                raise
        return stream

    async def take(self, stream: BatchedStream) -> None:
        """Moves a stream here (`BatchedStream.move`). ServerReplyError where this server is not the same."""
        link = await self._connect()
        if not stream.fingerprint or self.parameters.get(FINGERPRINT) != stream.fingerprint:
            raise ServerReplyError(f"the server at {self.endpoint.url} serves another model, or another version")
        try:
            await stream.move(link, self._geometry)
        except ClientError as error:
            if error.code in LOST:
                self.note_down()
            raise
        if (track := stream.track) is not None and not self._speakers.has(track):
            track.cancel(ConnectionLostError("speakers", f"the stream has moved to the server at {self.endpoint.url}"))

    def note_down(self) -> None:
        """It was lost, or not reached."""
        self.down_until_s = time.monotonic() + _DOWN_S

    async def probe(self) -> Probe:
        """Sends an empty stream in one row through all models of the server.

        Triton says that it is ready, and tells of its models, also when their processes have ended. Raises ClientError
        where no model answers, and ServerReplyError for a server that does not say what it offers.
        """
        link = await self._connect()
        if not self.parameters:  # they could not be read the last time
            await self._read_parameters()
        error = await _rejection(link)
        try:
            information = parse_server_info(self.parameters)
        except (KeyError, ValueError) as wrong:
            self.parameters = {}
            message = f"the server at {self.endpoint.url} does not say what it offers ({wrong})"
            raise ServerReplyError(message) from wrong
        return Probe(information, isinstance(error, ServerFullError), isinstance(error, ServerDrainingError))

    async def is_alive(self) -> bool:
        """True if it answers an empty stream over a connection of its own; also where this process was stalled."""
        link = Link(replace(self.endpoint, timeout_s=ALIVE_S))
        begin_s = link.now_s()
        try:
            await _rejection(link)
        except ClientError:
            return link.now_s() - begin_s > ALIVE_S + STALL_S
        finally:
            await link.close(at_once=True)
        return True

    async def close(self) -> None:
        """Ends the remaining streams and the connection."""
        self._is_closed = True
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._speakers.close()

    async def _connect(self) -> Link:
        """The link to the server; connects where there is none, or where it was lost."""
        while not self._is_closed:
            if self._link is not None and not self._link.is_lost:
                return self._link
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._open_link())
                self._connecting.add_done_callback(self._note_attempt)
            await asyncio.shield(self._connecting)  # a cancelled caller does not cancel the attempt of the others
        raise StreamClosedError(0, "the client is closed")

    async def _open_link(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._read_parameters()
        self._link = Link(self.endpoint, self.is_alive, self._slow_s)

    async def _read_parameters(self) -> None:
        self.parameters = await asyncio.to_thread(read_parameters, self.endpoint)
        self._geometry = read_geometry(self.parameters)

    def _note_attempt(self, attempt: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # those that wait for it report it; without this, asyncio does where there are none


async def _rejection(link: Link) -> ClientError | None:
    """Why the server, which is alive, accepts no stream: an empty one was sent. Raises ClientError where it is not."""
    stream = BatchedStream(link, {}, None, 1, is_empty=True)
    try:
        async for _ in stream:
            pass
    except (ServerFullError, ServerDrainingError) as rejection:
        return rejection
    finally:
        stream.cancel()
    return None
