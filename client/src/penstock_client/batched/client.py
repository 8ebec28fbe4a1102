"""The client of `asr_batch`: many live streams over few calls per server, whose chunks share requests."""

import asyncio
import math
import time
from collections.abc import Sequence
from functools import partial

from penstock_client import limits
from penstock_client.batched.rows import MOVABLE, OnAnswer
from penstock_client.batched.server import LOST, Probe, Server, StreamSettings, move_to_any
from penstock_client.batched.stream import BatchedStream
from penstock_client.connection import ConnectionOptions, Endpoint, ProtocolName
from penstock_common.errors import ClientError, ServerUnreachableError, SpeakersNotServedError
from penstock_common.options import StreamOptions, parameters_of
from penstock_common.samples import SAMPLE_RATE_HZ


class BatchedClient:
    """Carries any number of streams to the server at `url`, the host:port of its gRPC port. For one event loop.

    When replies slow down, it sends fewer, larger requests: rows of more streams share one. Where the server is lost,
    or leaves a request unanswered for `timeout_s`, all streams fail; the next `open_stream` connects anew. With several
    urls, streams start on the server with the fewest of them, and go on at another one of the same model where theirs
    is lost: their current segment is sent again, and nothing that was received is repeated. A server that leaves
    requests unanswered, but answers an empty stream, has `slow_s`, if that is longer. `max_replay_s` of audio are kept
    per stream for a move: by default 120 with several urls, else 0; any other value is at least `max_unanswered_s`.
    Raises ValueError for an invalid url, protocol, certificate file, number or connection option.
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
        endpoints = [Endpoint(each, protocol, timeout_s, options) for each in urls]
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

        The first one reads where the model's chunks end and connects. One with speakers is accepted when this returns.
        Raises ServerUnreachableError, ServerReplyError for a server
        without the model `asr_batch`, and the error of a rejection: SpeakersNotServedError only where no server has a
        speaker model.
        """
        failures: list[ClientError] = []
        for server in self._by_room():
            try:
                return self._watched(await _started(server, options, on_answer), server)
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
        # A copy: each task that ends takes itself out.
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
        if error.code in LOST and not error.of_speakers:
            server.note_down()
        # A move would open a link that nothing closes.
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


async def _started(server: Server, options: StreamOptions | None, on_answer: OnAnswer | None) -> BatchedStream:
    """A stream that has sent its start; one with speakers once it is accepted: else another server is tried."""
    stream = await server.open(parameters_of(options), on_answer)
    if stream.has_speakers:
        await stream.started()
    else:
        stream.start()
    return stream
