"""`python -m loadtest.streaming_process FD`: plays streams for the Locust process at the other end of a socket.

A separate process, because grpc under gevent passes each message through a thread pool and costs far more CPU than on
asyncio. So nothing here may import gevent or Locust, which would patch sockets and threads.

Each side sends msgpack arrays that begin with a word. Orders and their answers, in order:

    prepare OPTIONS PROCESS     prepared PROBLEM        prepares a test; PROBLEM is empty on success
    begin USER STAGGER_S                                a user starts to play
                                utterance MESSAGE       an utterance has ended (player.py)
    end USER                    ended USER              a user stops; sent after its last utterance
    close                       closed                  the test is over
"""

import argparse
import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

import msgpack
import numpy as np

from loadtest.options import GATEWAYS, RIVA, Schedule, request_samples
from loadtest.player import Player, Utterance, now_s
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock_client import SAMPLE_RATE_HZ, AsyncClient, ClientError, read_audio
from penstock_client.batched.signal import AsyncSignal
from penstock_client.cli.arguments import read_options

_READ_BYTES = 1 << 16


class StopSignal:
    """Stops the tasks of one user."""

    def __init__(self) -> None:
        self.is_set = False
        self._signal = AsyncSignal()

    def set(self) -> None:
        """Wakes the waiting tasks."""
        self.is_set = True
        self._signal.give()

    async def wait(self, limit_s: float) -> None:
        """Returns after `limit_s`, or when it is set."""
        if not self.is_set:
            await self._signal.wait(limit_s)


class Streaming:
    """One test's recordings, connection and users. `process`: this process's number among the load generator's.

    Raises PenstockError, ClientError or ValueError for invalid options.
    """

    def __init__(self, options: argparse.Namespace, process: int, deliver: Callable[[Utterance], None]):
        self._recordings = read_recordings(Path(options.recordings))
        self._deliver = deliver
        self._process = process
        self._seed = options.seed
        self._request_samples = request_samples(options.request_ms, SAMPLE_RATE_HZ)
        self._options = read_options(options)
        timeout_s = options.reply_timeout
        self._client: AsyncClient | None = None
        if options.target in GATEWAYS:
            from loadtest.gateway_clients import GatewayVoice, realtime_texts, riva_texts  # needs the gateway's wheel

            texts = riva_texts if options.target == RIVA else realtime_texts
            # Each opens a connection of its own, as clients of a gateway do.
            self._open = lambda own: GatewayVoice(partial(texts, options.url, has_speakers=own.speakers == "on"))
        else:
            self._client = AsyncClient(options.url, options.protocol, timeout_s=timeout_s, align=not options.no_align)
            self._open = self._client.open_stream

    async def play_user(self, number: int, stagger_s: float, stop: StopSignal) -> None:
        """Plays one recording after another, each on time, whether or not the last one is answered.

        Returns after `stop`, once all records are delivered. Raises what playing one raised.
        """
        schedule = Schedule(self._seed, self._process, number)
        start_s = now_s() + schedule.start_s(stagger_s)
        playing: set[asyncio.Task[None]] = set()
        for recording in schedule.recordings(len(self._recordings)):
            while not stop.is_set and (wait_s := start_s - now_s()) > 0:
                await stop.wait(wait_s)
            if stop.is_set:
                break
            for done in [task for task in playing if task.done()]:
                playing.remove(done)
                done.result()
            playing.add(asyncio.create_task(self._play(recording, start_s, stop)))
            start_s += self._recordings[recording].size / SAMPLE_RATE_HZ
        await asyncio.gather(*playing)

    async def close(self) -> None:
        """Closes the connection."""
        if self._client:
            await self._client.close()

    async def _play(self, recording: int, start_s: float, stop: StopSignal) -> None:
        samples = self._recordings[recording]
        player = Player(samples, self._request_samples, lambda: stop.is_set, sleep=stop.wait)
        self._deliver(await player.play(partial(self._open, self._options), recording, start_s))


@lru_cache(maxsize=1)
def read_recordings(manifest: Path) -> list[np.ndarray]:
    """Reads the samples [n] of each recording (mono, 16 kHz); the last manifest's are cached.

    Raises PenstockError and ClientError.
    """
    return [read_audio(utterance.audio) for utterance in read_manifest(manifest)]


class StreamingProcess:
    """Carries out the orders."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writer = writer
        self._streaming: Streaming | None = None
        self._users: dict[int, StopSignal] = {}
        """The users of this test, including those that are stopping."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One task for each user that has not ended."""
        self.error: BaseException | None = None
        """Error that ended a user too early; the socket is closed then."""

    async def carry_out(self, order: str, *arguments: object) -> None:
        """Carries out an order; KeyError for an unknown one."""
        orders = {"prepare": self._prepare, "begin": self._begin, "end": self._end, "close": self._close}
        await orders[order](*arguments)

    async def _prepare(self, options: dict, process: int) -> None:
        await self._stop_streaming()
        try:
            self._streaming = Streaming(argparse.Namespace(**options), process, self._deliver)
        except (PenstockError, ClientError, ValueError) as error:
            self._send("prepared", str(error) or type(error).__name__)
            return
        gc.collect()
        gc.freeze()  # what is loaded by now stays
        self._send("prepared", "")

    async def _begin(self, user: int, stagger_s: float) -> None:
        stop = self._users[user] = StopSignal()
        task = asyncio.create_task(self._streaming.play_user(user, stagger_s, stop))
        self._tasks.add(task)
        task.add_done_callback(partial(self._record_end, user))

    def _record_end(self, user: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            self.error = self.error or error
            self._writer.close()
            return
        self._send("ended", user)

    async def _end(self, user: int) -> None:
        self._users[user].set()

    async def _close(self) -> None:
        await self._stop_streaming()
        self._send("closed")

    async def _stop_streaming(self) -> None:
        """Stops users that Locust has abandoned, too: their streams fail."""
        for stop in self._users.values():
            stop.set()
        self._users.clear()
        if self._streaming is not None:
            await self._streaming.close()
            self._streaming = None
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _deliver(self, utterance: Utterance) -> None:
        self._send("utterance", utterance.to_message())

    def _send(self, *words: object) -> None:
        self._writer.write(msgpack.packb(words))


async def serve(connection: socket.socket) -> None:
    """Carries out the orders of a socket until its other end is closed. Raises what ended a user."""
    reader, writer = await asyncio.open_connection(sock=connection)
    process, orders = StreamingProcess(writer), msgpack.Unpacker()
    with suppress(ConnectionError):  # the other end was closed with something on its way there
        while received := await reader.read(_READ_BYTES):
            orders.feed(received)
            for order in orders:
                await process.carry_out(*order)
    if process.error:
        raise process.error


if __name__ == "__main__":
    for sent_to_group in (signal.SIGINT, signal.SIGTERM):  # Locust receives them too and ends this process
        signal.signal(sent_to_group, signal.SIG_IGN)
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
