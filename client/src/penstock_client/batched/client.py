"""The client of `asr_batch`: many live streams over one call per server, whose chunks share requests."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from penstock_client.batched.results import OnAnswer
from penstock_client.batched.rows import MOVABLE
from penstock_client.batched.server import LOST, Probe, Server, StreamSettings
from penstock_client.batched.stream import BatchedStream
from penstock_client.batched.wire import MODEL_NAME
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_client.errors import (
    ClientError,
    ServerUnreachableError,
    SpeakersNotServedError,
    StreamClosedError,
)
from penstock_client.options import StreamOptions
from penstock_client.protocol import SAMPLE_RATE_HZ
from penstock_client.transport.grpc_wire import check_certificates

log = logging.getLogger("penstock_client")
_MAX_UNANSWERED_S = 20.0
_MAX_REPLAY_S = 120.0
MAX_WAIT_S = 15.0
"""How long a lost stream waits for a server with room: one that is late or full, or that starts again."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


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
        timeout_s: float = 10.0,
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
        if not endpoints[0].is_grpc:
            raise ValueError(f"protocol is {protocol!r}, expected 'grpc' or 'grpcs': {MODEL_NAME} needs a gRPC stream")
        if not 0 < max_unanswered_s <= _MAX_UNANSWERED_S:
            raise ValueError(f"max_unanswered_s is {max_unanswered_s!r}, expected above 0, up to {_MAX_UNANSWERED_S:g}")
        if not 0 <= slow_s < math.inf:
            raise ValueError(f"slow_s is {slow_s!r}, expected 0 or more")
        if max_replay_s and not max_unanswered_s <= max_replay_s < math.inf:
            raise ValueError(f"max_replay_s is {max_replay_s!r}, expected 0, or max_unanswered_s or more")
        for name in ("wait_for_slot_s", "reconnect_s"):
            if getattr(options, name):
                raise ValueError(f"{name} is set, but BatchedClient does not have it: use Client")
        check_certificates(endpoints[0])
        self.url = ",".join(urls)
        replay_s = max_replay_s if max_replay_s is not None else _MAX_REPLAY_S if len(urls) > 1 else 0.0
        samples = max(1, round(max_unanswered_s * SAMPLE_RATE_HZ))
        settings = StreamSettings(samples, align, round(replay_s * SAMPLE_RATE_HZ))
        self._servers = [Server(endpoint, settings, slow_s) for endpoint in endpoints]
        self._moves: dict[asyncio.Task[None], tuple[BatchedStream, ClientError]] = {}
        """Of which stream, and why it is lost."""
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
                return self._watched(await server.open(options, on_answer), server)
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
        """As `Server.probe`, of the first server."""
        return await self._servers[0].probe()

    async def take(self, stream: BatchedStream) -> None:
        """As `Server.take`, to the first server: for a stream of another client."""
        await self._servers[0].take(stream)

    async def close(self) -> None:
        """Ends the remaining streams and the connections."""
        self._is_closed = True
        moves = dict(self._moves)
        for task in moves:
            task.cancel()
        await asyncio.gather(*moves, return_exceptions=True)
        for stream, error in moves.values():
            if stream.is_adrift:  # its task had not begun
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
    """Where a stream can move to."""

    async def take(self, stream: BatchedStream) -> None:
        """Moves it here. ClientError where that fails."""


T = TypeVar("T", bound=Target)


async def move_to_any(stream: BatchedStream, lost: ClientError, targets: Callable[[], Iterable[T]]) -> T | None:
    """Moves a lost stream to the first target that takes it. After 15 s, or where none can, fails it with its loss.

    targets: the best first; called for each attempt. Returns the target, None where the stream is over.
    """
    deadline_s, pause_s = time.monotonic() + MAX_WAIT_S, _PAUSE_S
    try:
        while stream.is_adrift:
            for target in targets():
                try:
                    await target.take(stream)
                    return target
                except StreamClosedError:  # too long since its last border: nowhere
                    return None
                except ClientError as error:
                    log.debug("stream %s cannot go on there: %s", stream.stream_id, error)
                if not stream.is_adrift:
                    return None
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
    finally:
        if stream.is_adrift:
            stream.give_up(lost)
    return None
