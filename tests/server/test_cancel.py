"""The slot of a cancelled stream on a real server."""

import time

import pytest

from penstock_client import Client, StreamClosedError, read_audio
from tests.helpers.golden import golden_utterances
from trials.server.recordings import send_empty_stream
from trials.server.resources import read_metrics
from trials.server.running import RunningServer

pytestmark = pytest.mark.server


class Watcher:
    """Waits for a free slot, for ten times the duration of one reading: a busy machine is slow."""

    def __init__(self, server: RunningServer):
        self._server = server
        started_s = time.monotonic()
        self._live = self._read_live()
        self._longest_s = max(10.0, 10 * (time.monotonic() - started_s))

    def wait(self) -> None:
        """Waits until one stream fewer is live than at the beginning; AssertionError if that takes too long."""
        deadline_s = time.monotonic() + self._longest_s
        while self._read_live() >= self._live:
            assert time.monotonic() < deadline_s, f"no slot is free after {self._longest_s:.1f} s"

    def _read_live(self) -> float:
        send_empty_stream(self._server)  # requests update the gauges
        return read_metrics(self._server)["streams_live"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_a_stream_frees_its_slot_at_once(server: RunningServer, protocol):
    with Client(server.url(protocol), protocol) as client, client.open_stream() as stream:
        stream.send(read_audio(golden_utterances()[0].path)[:20000])
        assert stream.poll(wait_s=60)
        watcher = Watcher(server)
        stream.cancel()
        with pytest.raises(StreamClosedError):
            stream.poll(wait_s=1)
        watcher.wait()
