"""The client of `asr_batch`: many live streams over one call, whose chunks share requests."""

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple

from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_client.batched.link import Link
from penstock_client.batched.stream import BatchedStream, OnAnswer
from penstock_client.batched.wire import MODEL_NAME
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_client.errors import ServerDrainingError, ServerFullError, ServerReplyError, StreamClosedError
from penstock_client.options import StreamOptions
from penstock_client.protocol import SAMPLE_RATE_HZ
from penstock_client.server_info import ServerInfo, parse_server_info
from penstock_client.transport.grpc_wire import check_certificates
from penstock_client.transport.model_config import read_parameters

_MAX_UNANSWERED_S = 20.0


class Probe(NamedTuple):
    """What an empty stream has shown of a server that is alive."""

    information: ServerInfo
    """As of the connection."""
    is_full: bool
    is_draining: bool


class BatchedClient:
    """Carries any number of streams to the server at `url`, the host:port of its gRPC port. For one event loop.

    When replies slow down, it sends fewer, larger requests: rows of more streams share one. The gap between requests is
    half of the extra delay, at most 250 ms. The extra delay is the newest round trip, or the age of the oldest
    unanswered request if that is longer, minus the shortest round trip so far.
    Where the server is lost, or leaves a request unanswered for `timeout_s`, all streams fail; the next `open_stream`
    connects anew. No audio is sent twice. Raises ValueError for an invalid url, protocol, certificate file, number or
    connection option.
    """

    def __init__(
        self,
        url: str,
        protocol: ProtocolName = "grpc",
        *,
        timeout_s: float = 10.0,
        connection_options: ConnectionOptions | None = None,
        max_unanswered_s: float = 2.0,
        align: bool = True,
    ):
        self._endpoint = Endpoint(url, protocol, MODEL_NAME, timeout_s, connection_options or ConnectionOptions())
        if not self._endpoint.is_grpc:
            raise ValueError(f"protocol is {protocol!r}, expected 'grpc' or 'grpcs': {MODEL_NAME} needs a gRPC stream")
        if not 0 < max_unanswered_s <= _MAX_UNANSWERED_S:
            raise ValueError(f"max_unanswered_s is {max_unanswered_s!r}, expected above 0, up to {_MAX_UNANSWERED_S:g}")
        for name in ("wait_for_slot_s", "reconnect_s"):
            if getattr(self._endpoint.options, name):
                raise ValueError(f"{name} is set, but BatchedClient does not have it: use Client")
        check_certificates(self._endpoint)
        self.url = url
        self._max_unanswered_samples = max(1, round(max_unanswered_s * SAMPLE_RATE_HZ))
        self._aligns = align
        self._link: Link | None = None
        self._geometry: ChunkGeometry | None = None
        self._parameters: Mapping[str, str] = {}
        self._numbers = 0
        self._connecting: asyncio.Task[None] | None = None
        """The attempt to connect that all streams opened meanwhile wait for, and fail with."""
        self._is_closed = False

    async def open_stream(
        self, options: StreamOptions | None = None, on_answer: OnAnswer | None = None
    ) -> BatchedStream:
        """A new stream, whose start is sent at once; its `accepted` waits for the answer.

        The first one reads where the model's chunks end and connects. Raises ServerUnreachableError, and
        ServerReplyError for a server without the model `asr_batch`.
        """
        return self._open(await self._connect(), options, on_answer)

    async def probe(self) -> Probe:
        """Sends an empty stream in one row through all models of the server.

        Triton says that it is ready, and tells of its models, also when their processes have ended. Raises ClientError
        where no model answers, and ServerReplyError for a server that does not say what it offers.
        """
        link = await self._connect()
        if not self._parameters:  # they could not be read the last time
            await self._read_parameters()
        stream = self._open(link, is_empty=True)
        error = None
        try:
            async for _ in stream:
                pass
        except (ServerFullError, ServerDrainingError) as rejection:
            error = rejection
        finally:
            stream.cancel()
        try:
            information = parse_server_info(self._parameters)
        except (KeyError, ValueError) as wrong:
            self._parameters = {}
            raise ServerReplyError(f"the server at {self.url} does not say what it offers ({wrong})") from wrong
        return Probe(information, isinstance(error, ServerFullError), isinstance(error, ServerDrainingError))

    def _open(
        self,
        link: Link,
        options: StreamOptions | None = None,
        on_answer: OnAnswer | None = None,
        is_empty: bool = False,
    ) -> BatchedStream:
        self._numbers += 1
        stream = BatchedStream(
            self._numbers,
            link,
            json.dumps(options.parameters() if options else {}),
            self._geometry,
            self._max_unanswered_samples,
            on_answer,
            is_empty,
        )
        link.add(stream)
        return stream

    async def close(self) -> None:
        """Ends the remaining streams and the connection."""
        self._is_closed = True
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def __aenter__(self) -> "BatchedClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connect(self) -> Link:
        """The link to the server; connects where there is none, or where it was lost."""
        while not self._is_closed:
            if self._link is not None and not self._link.is_lost:
                return self._link
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._open_link())
                self._connecting.add_done_callback(self._note_attempt)
            await asyncio.shield(self._connecting)  # a cancelled caller does not cancel the attempt of the others
        raise StreamClosedError(self._numbers + 1, "the client is closed")

    async def _open_link(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._read_parameters()
        self._link = Link(self._endpoint)

    async def _read_parameters(self) -> None:
        self._parameters = await asyncio.to_thread(read_parameters, self._endpoint)
        self._geometry = read_geometry(self._parameters) if self._aligns else None

    def _note_attempt(self, attempt: "asyncio.Task[None]") -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # those that wait for it report it; without this, asyncio does where there are none
