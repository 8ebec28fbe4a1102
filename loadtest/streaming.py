"""What the users of one process share: recordings, the connection to the server, and a place for their notes."""

import argparse
from collections.abc import Callable
from pathlib import Path

from loadtest.options import piece_samples
from loadtest.player import Player
from loadtest.recordings import read_recordings
from loadtest.records import Utterance
from loadtest.schedule import Schedule
from penstock_client import SAMPLE_RATE_HZ, Client
from penstock_client.option_arguments import read_options


class Streaming:
    """Of one test. `process` is this process's number among those that generate load."""

    def __init__(self, options: argparse.Namespace, process: int, deliver: Callable[[Utterance], None]):
        self.recordings = read_recordings(Path(options.recordings))
        self._deliver = deliver
        self._process = process
        self._seed = options.seed
        self._users = 0
        self._piece_samples = piece_samples(options.piece_ms, SAMPLE_RATE_HZ)
        self._stream_options = read_options(options)
        self._client = Client(options.url, options.protocol, timeout_s=options.reply_timeout)

    def next_schedule(self) -> Schedule:
        """Of a user that has just been made."""
        self._users += 1
        return Schedule(self._seed, self._process, self._users)

    def player(self, recording: int, is_stopping: Callable[[], bool], sleep: Callable[[float], object]) -> Player:
        """Of one utterance."""
        return Player(self.recordings.samples[recording], self._piece_samples, is_stopping, sleep=sleep)

    def play(self, player: Player, recording: int, start_s: float) -> None:
        """Plays one utterance on a stream with the test's options, and delivers what came of it."""
        self._deliver(player.play(lambda: self._client.open_stream(options=self._stream_options), recording, start_s))

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()
