"""The slot of a cancelled stream on a real server."""

import pytest

from penstock_client import Client, StreamClosedError, read_audio
from tests.helpers.golden import golden_utterances
from trials.server.recordings import send_empty_stream
from trials.server.resources import read_metrics
from trials.server.running import RunningServer, wait_until

pytestmark = pytest.mark.server


def metrics(server: RunningServer) -> dict[str, float]:
    send_empty_stream(server)  # requests update the gauges
    return read_metrics(server)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_cancelling_a_stream_frees_its_slot_before_the_idle_timeout(server: RunningServer, protocol):
    with Client(server.url(protocol), protocol) as client, client.open_stream() as stream:
        stream.send(read_audio(golden_utterances()[0].path)[:20000])
        assert stream.poll(wait_s=60)
        live = metrics(server)["streams_live"]
        stream.cancel()
        with pytest.raises(StreamClosedError):
            stream.poll(wait_s=1)
        wait_until(lambda: metrics(server)["streams_live"] < live, server.idle_s - 5.0, "no slot is free")
