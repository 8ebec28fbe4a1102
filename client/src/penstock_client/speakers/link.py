"""The connection to the model `speakers`, for streams with speakers.

The library of a protocol is imported when it is used.
"""

import asyncio
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
)
from penstock_client.options import SpeakerSettings
from penstock_client.protocol import END_REQUEST, Request
from penstock_client.replies import UNREADABLE, stream_error
from penstock_client.speakers.probabilities import Frames
from penstock_client.speakers.track import MAX_KEEP_ALIVE_S, SpeakerTrack
from penstock_client.transport.server_offer import try_parameters
from penstock_client.transport.thread import in_thread

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
            self._parameters = asyncio.create_task(in_thread(self._read_parameters))
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
        return await in_thread(self._read_parameters_soon) is not None

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
            error_text,
            exchange,
            open_session,
            post_of,
            tls_context,
        )

        if self._http is None:
            self._http = open_session(tls_context(self._endpoint))
        http = self._http

        async def post(request: Request) -> Callable[[str], npt.ArrayLike | None]:
            return await exchange(http, self._endpoint, stream_id, post_of(self._endpoint, stream_id, request))

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
