"""The streams of one process: recordings, the connection to the server, and users that play until they are stopped.

Runs in an event loop of asyncio. Knows neither Locust nor gevent, and not where its users' notes go.
"""

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from loadtest.options import piece_samples
from loadtest.player import Player, now_s
from loadtest.recordings import read_recordings
from loadtest.records import Utterance
from loadtest.schedule import Schedule
from penstock_client import SAMPLE_RATE_HZ, AsyncClient
from penstock_client.async_signal import AsyncSignal
from penstock_client.option_arguments import read_options


class Streaming:
    """Of one test. `process` is this process's number among those that generate load.

    Raises PenstockError, ClientError or ValueError for options that cannot be met.
    """

    def __init__(self, options: argparse.Namespace, process: int, deliver: Callable[[Utterance], None]):
        self._recordings = read_recordings(Path(options.recordings))
        self._deliver = deliver
        self._process = process
        self._seed = options.seed
        self._piece_samples = piece_samples(options.piece_ms, SAMPLE_RATE_HZ)
        self._stream_options = read_options(options)
        self._client = AsyncClient(options.url, options.protocol, timeout_s=options.reply_timeout)

    async def play_user(self, number: int, stagger_s: float, stopping: "Stopping") -> None:
        """Plays one recording after another, each on time, whether or not the last one is answered.

        Returns once it is told to stop and its notes are delivered. Raises what playing one raised.
        """
        schedule = Schedule(self._seed, self._process, number)
        start_s = now_s() + schedule.start_s(stagger_s)
        playing: set[asyncio.Task[None]] = set()
        for recording in schedule.recordings(len(self._recordings)):
            while not stopping.is_set and (wait_s := start_s - now_s()) > 0:
                await stopping.wait(wait_s)
            if stopping.is_set:
                break
            samples = self._recordings[recording]
            player = Player(samples, self._piece_samples, lambda: stopping.is_set, sleep=stopping.wait)
            playing = _unfinished(playing) | {asyncio.create_task(self._play(player, recording, start_s))}
            start_s += player.duration_s
        await asyncio.gather(*playing)

    async def close(self) -> None:
        """Ends the connection."""
        await self._client.close()

    async def _play(self, player: Player, recording: int, start_s: float) -> None:
        self._deliver(
            await player.play(lambda: self._client.open_stream(options=self._stream_options), recording, start_s)
        )


class Stopping:
    """Tells the tasks of one user to stop."""

    def __init__(self) -> None:
        self.is_set = False
        self._signal = AsyncSignal()

    def set(self) -> None:
        """Wakes those that wait."""
        self.is_set = True
        self._signal.give()

    async def wait(self, limit_s: float) -> None:
        """Returns after `limit_s`, or when it is set."""
        if not self.is_set:
            await self._signal.wait(limit_s)


def _unfinished(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that go on. Raises what one of the others raised."""
    for task in tasks:
        if task.done():
            task.result()
    return {task for task in tasks if not task.done()}
