"""Streams with speakers: the connection to the model `speakers`, and a transport whose audio goes there, too.

The library of a protocol is imported when it is used.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock_client.connection import Endpoint
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ServerUnreachableError,
    StreamClosedError,
    StreamId,
)
from penstock_client.options import SPEAKER_FILE, SpeakerSettings
from penstock_client.protocol import END_REQUEST, POLL_REQUEST, Request, Result, with_speakers
from penstock_client.replies import UNREADABLE, stream_error
from penstock_client.speakers.probabilities import Frames
from penstock_client.speakers.track import FILE_REPLY_S, GATEWAY_HAS_IT, MAX_KEEP_ALIVE_S, SpeakerTrack
from penstock_client.transport import resuming
from penstock_client.transport.base import AsyncConnection, AsyncTransport
from penstock_client.transport.server_offer import ServerChunks, try_parameters

if TYPE_CHECKING:
    import aiohttp
    import grpc.aio

MODEL_NAME = "speakers"
_END_S = 1.0
"""Time to send the end of a stream that is cut off."""
Reply = tuple[int, Frames]


class SpeakerLink:
    """The connection to one server's model `speakers`, for all streams of a client. Used in one event loop."""

    def __init__(
        self, endpoint: Endpoint, is_alive: Callable[[], Coroutine[None, None, bool]] | None = None, slow_s: float = 0.0
    ):
        """is_alive: asks the server; by default for what it offers. slow_s: as of `Link`."""
        self._endpoint, self._slow_s = replace(endpoint, model=MODEL_NAME), slow_s
        self._ask = is_alive or self._offers
        self._asking: asyncio.Task[bool] | None = None
        self._read_parameters = partial(try_parameters, endpoint)
        self._read_parameters_soon = partial(try_parameters, replace(endpoint, timeout_s=endpoint.timeout_s / 2))
        self._parameters: asyncio.Task[Mapping[str, str] | None] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._http: aiohttp.ClientSession | None = None
        self._tracks: set[SpeakerTrack] = set()

    def track(self, settings: SpeakerSettings) -> SpeakerTrack:
        """The track of a new stream, which is still to be opened."""
        exchange = self._over_grpc if self._endpoint.is_grpc else self._over_http
        self._tracks = {each for each in self._tracks if not each.is_ended}
        timeout_s, options = self._endpoint.timeout_s, self._endpoint.options
        track = SpeakerTrack(exchange, settings, timeout_s, options, self._keep_alive_s, self._is_alive, self._slow_s)
        self._tracks.add(track)
        return track

    def has(self, track: SpeakerTrack) -> bool:
        """True if it is one of this server, and not over."""
        return track in self._tracks and not track.is_ended

    async def _keep_alive_s(self) -> float:
        """The longest time between two requests of a stream; what the server's recognizer offers is read once."""
        if self._parameters is None:
            self._parameters = asyncio.create_task(asyncio.to_thread(self._read_parameters))
        parameters = await asyncio.shield(self._parameters) or {}
        try:
            idle_s = float(parameters["idle_s"])
        except (KeyError, ValueError):
            return MAX_KEEP_ALIVE_S
        return min(MAX_KEEP_ALIVE_S, idle_s / 3) if idle_s > 0 else MAX_KEEP_ALIVE_S

    async def _is_alive(self) -> bool:
        """Asked once for all tracks that ask meanwhile."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        asking = self._asking
        await asyncio.wait([asking])
        return asking.cancelled() or asking.result()

    async def _offers(self) -> bool:
        """True if the server tells what its recognizer offers, or that it has none."""
        return await asyncio.to_thread(self._read_parameters_soon) is not None

    async def close(self) -> None:
        """Ends its streams and the connection."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await asyncio.gather(*(track.close() for track in self._tracks))
        if self._parameters is not None:
            await asyncio.wait([self._parameters])
        if self._channel is not None:
            await self._channel.close()
        if self._http is not None:
            await self._http.close()

    async def _over_grpc(self, stream_id: str, requests: AsyncIterator[Request]) -> AsyncGenerator[Reply, None]:
        import grpc.aio
        from tritonclient.grpc import service_pb2_grpc

        from penstock_client.transport.grpc_transport import (
            call_metadata,
            model_request,
            open_channel,
            output_values,
            reason,
        )

        if self._channel is None:
            self._channel = open_channel(grpc.aio, self._endpoint)
        call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStreamInfer(
            metadata=call_metadata(self._endpoint.options)
        )

        async def send() -> None:
            with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader says why
                async for request in requests:
                    await call.write(model_request(MODEL_NAME, stream_id, request))
                await call.done_writing()

        sending, is_reached = asyncio.create_task(send(), name=f"penstock {stream_id} speaker requests"), False
        try:
            async for reply in call:
                is_reached = True
                if reply.error_message:
                    raise stream_error(stream_id, reply.error_message)
                yield _read(stream_id, output_values(reply.infer_response))
        except grpc.RpcError as error:
            if not is_reached:
                raise ServerUnreachableError(self._endpoint.url, reason(error)) from error
            raise ConnectionLostError(stream_id, f"lost the model speakers: {reason(error)}") from error
        finally:
            sending.cancel()
            call.cancel()

    async def _over_http(self, stream_id: str, requests: AsyncIterator[Request]) -> AsyncGenerator[Reply, None]:
        import aiohttp

        from penstock_client.transport.http_transport import (
            HEADER_LENGTH,
            error_text,
            open_session,
            post_of,
            read_content,
            read_outputs,
            tls_context,
            url_of,
        )

        if self._http is None:
            self._http = open_session(tls_context(self._endpoint))
        http = self._http

        async def post(request: Request) -> Callable[[str], npt.ArrayLike | None]:
            path, body, headers = post_of(self._endpoint, stream_id, request)
            url = url_of(self._endpoint, path)
            async with http.post(url, data=body, headers=headers, allow_redirects=False) as response:
                content = await read_content(response, stream_id)
                length = response.headers.get(HEADER_LENGTH)
                return read_outputs(self._endpoint, stream_id, response.status, length, content)

        is_reached = is_open = False
        try:
            async for request in requests:
                is_open = not request.is_end
                try:
                    outputs = await post(request)
                except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the session was closed
                    if not is_reached:
                        raise ServerUnreachableError(self._endpoint.url, error_text(error)) from error
                    raise ConnectionLostError(stream_id, f"lost the model speakers: {error_text(error)}") from error
                is_reached = True
                yield _read(stream_id, outputs)
        except (asyncio.CancelledError, GeneratorExit):  # the server may still compute the reply, and waits for more
            if is_open:
                with suppress(aiohttp.ClientError, OSError, RuntimeError, ClientError, asyncio.TimeoutError):
                    await asyncio.wait_for(post(END_REQUEST), _END_S)
            raise


def _read(stream_id: str, outputs: Callable[[str], npt.ArrayLike | None]) -> Reply:
    """The first frame and the frames [n, K] of a reply. ProtocolError for anything else."""
    try:
        values = [outputs(name) for name in ("PROBABILITIES", "FIRST_FRAME", "SPEAKERS")]
        if any(each is None for each in values):
            raise ValueError("an output is missing")
        flat, first_frame, speakers = (np.asarray(each).ravel() for each in values)
        frames = flat.astype(np.float32, copy=False).reshape(-1 if len(flat) else 0, int(speakers[0]))
        return int(first_frame[0]), frames
    except UNREADABLE as error:
        raise ProtocolError(stream_id, f"the reply of the model speakers cannot be read: {error}") from error


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


def open_transport(
    connection: AsyncConnection, stream_id: StreamId, timeout_s: float, speakers: SpeakerSettings | None
) -> AsyncTransport:
    """A transport for a new stream. ValueError for speakers over a connection of the caller's own."""
    if speakers is None:
        return connection.open_transport(stream_id, timeout_s)
    if not isinstance(connection, SpeakingConnection):
        raise ValueError("speakers are asked for, but the connection that was given is of another kind")
    return connection.open_transport(stream_id, timeout_s, speakers)


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
