"""Streams with speakers: an asyncio transport whose audio goes to the model `speakers`, too."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from penstock_client.connection import Endpoint
from penstock_client.errors import ClientError, StreamClosedError, StreamId
from penstock_client.options import SPEAKER_FILE
from penstock_client.protocol import POLL_REQUEST, Request, Result, with_speakers
from penstock_client.speakers.settings import SpeakerSettings
from penstock_client.speakers.track import FILE_REPLY_S, GATEWAY_HAS_IT, SpeakerTrack
from penstock_client.speakers.wire import SpeakerLink
from penstock_client.transport import resuming
from penstock_client.transport.async_base import AsyncConnection, AsyncTransport
from penstock_client.transport.server_chunks import ServerChunks


class SpeakingConnection:
    """Another connection, some of whose streams have speakers."""

    def __init__(self, connection: AsyncConnection, endpoint: Endpoint):
        self._connection, self._link = connection, SpeakerLink(endpoint)

    def open_transport(
        self, stream_id: StreamId, timeout_s: float, speakers: SpeakerSettings | None = None
    ) -> AsyncTransport:
        """A transport for a new stream. It connects with its first request, so errors appear there."""
        if speakers is None:
            return self._connection.open_transport(stream_id, timeout_s)
        return SpeakingTransport(
            partial(self._connection.open_transport, stream_id), timeout_s, self._link.track(speakers)
        )

    async def close(self) -> None:
        """Frees what the transports share."""
        await self._link.close()
        await self._connection.close()


def connect(endpoint: Endpoint, chunks: ServerChunks | None = None) -> SpeakingConnection:
    """The connection for an endpoint, as `resuming.connect`."""
    return SpeakingConnection(resuming.connect(endpoint, chunks), endpoint)


def speaking(connection: AsyncConnection) -> SpeakingConnection:
    """The same connection. ValueError for one of the caller's own."""
    if not isinstance(connection, SpeakingConnection):
        raise ValueError("speakers are asked for, but the connection that was given is of another kind")
    return connection


class SpeakingTransport:
    """Another transport, whose final results wait for their speakers. An `AsyncTransport`."""

    def __init__(self, open_transport: Callable[[float], AsyncTransport], timeout_s: float, track: SpeakerTrack):
        """open_transport: for a time limit of replies."""
        self._open_transport, self._timeout_s, self._track = open_transport, timeout_s, track
        self._transport = open_transport(timeout_s)
        self._waiting: tuple[Result, float] | None = None
        """A final result without its speakers, and when it came."""
        self._is_gateway = self._is_ended = False
        """Ended: the last request was sent."""
        track.keep_open = self._keep_open

    @property
    def is_complete(self) -> bool:
        """True once every request up to the last is answered and every result was received."""
        return self._waiting is None and self._transport.is_complete

    async def send(self, request: Request) -> None:
        """Sends without waiting for the reply; waits while too much is unanswered. Raises ClientError.

        Before the first request the model `speakers` has to accept the stream. A gateway has its own way to it.
        """
        if request.is_start:
            try:
                await self._track.open()
            except ClientError as error:
                if error.code != GATEWAY_HAS_IT:
                    raise
                self._pass_to_gateway()
                request = replace(request, parameters={**request.parameters, **self._track.settings.options()})
        await self._transport.send(request)
        self._is_ended = request.is_end
        if self._is_gateway:
            return
        try:
            await self._track.send(np.frombuffer(request.audio, "<f4"))
        finally:
            if request.is_end:
                self._track.finish()

    async def _keep_open(self) -> None:
        if not self._is_ended:
            await self._transport.send(POLL_REQUEST)

    def _pass_to_gateway(self) -> None:
        """Its replies wait for their speakers there: of a file that may take longer than words do."""
        self._is_gateway = True
        if self._track.settings.mode == SPEAKER_FILE:
            unused, self._transport = self._transport, self._open_transport(self._timeout_s + FILE_REPLY_S)
            unused.cancel()  # those that wait for its results go on with the other one

    async def receive(self, wait_s: float | None) -> Result | None:
        """The next result; None if there is none within `wait_s` (None: no limit) or the stream is complete.

        Raises ClientError.
        """
        deadline_s = math.inf if wait_s is None else time.monotonic() + wait_s
        if self._waiting is None:
            result = await self._received(0)
            has_waited = result is not None
            if result is None and (result := await self._received(wait_s)) is None:
                return None
            if self._is_gateway:
                return _placed(result)
            self._waiting = result, self._track.came_s(has_waited)
        if not await self._track.is_due(*self._waiting, deadline_s - time.monotonic()):
            return None
        result, self._waiting = self._waiting[0], None
        return self._track.place(result)

    async def _received(self, wait_s: float | None) -> Result | None:
        while True:
            transport = self._transport
            try:
                return await transport.receive(wait_s)
            except StreamClosedError:
                if transport is self._transport:
                    raise

    def cancel(self) -> None:
        """Drops what has not been sent; the stream's end is sent in its place. Does not wait."""
        self._track.cancel()
        self._transport.cancel()

    async def close(self) -> None:
        """Cancels, and frees everything."""
        await asyncio.gather(self._transport.close(), self._track.close())


def _placed(result: Result) -> Result:
    """A gateway's result, its new words with their speakers."""
    speakers = result.word_speakers[len(result.word_speakers) - len(result.new_words) :]
    return replace(result, new_words=tuple(with_speakers(result.new_words, speakers))) if speakers else result
