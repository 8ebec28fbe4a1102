"""The metrics of streams on a real server's metrics port."""

import time

import numpy as np
import pytest

from penstock.frontend.audio_file import read_audio
from penstock_client import Client, ServerFullError
from tests.helpers.golden import golden_utterances
from trials.server.raw_stream import RawStream
from trials.server.resources import read_metrics
from trials.server.running import RunningServer

pytestmark = pytest.mark.server


def test_streams_and_audio_are_counted(small_server: RunningServer):
    samples = read_audio(golden_utterances()[0].path, 16000)
    with Client(small_server.url("grpc")) as client:
        client.transcribe(np.zeros(0, np.float32))
        before = read_metrics(small_server)
        assert (before["streams_live"], before["slots_free"]) == (0, small_server.max_streams)
        client.transcribe(samples)
        streams = [RawStream(small_server.url("grpc"), f"counted-{i}") for i in range(small_server.max_streams)]
        for stream in streams:
            stream.send(samples[:1600], start=True)
        with pytest.raises(ServerFullError):
            client.transcribe(samples)
        full = read_metrics(small_server)
        assert (full["streams_live"], full["slots_free"]) == (small_server.max_streams, 0)
        streams[0].send(samples[:0], end=True)
        time.sleep(small_server.idle_s + 0.3)
        client.transcribe(np.zeros(0, np.float32))  # any request updates the gauges
        after = read_metrics(small_server)
    for stream in streams:
        stream.close()
    grown = {name: after[name] - before[name] for name in after}
    assert (after["streams_live"], after["slots_free"]) == (0, small_server.max_streams)
    assert grown["streams_started_total"] == 1 + small_server.max_streams
    assert grown["streams_ended_total"] == 2  # without the empty one, which is as a probe
    assert grown["streams_expired_total"] == small_server.max_streams - 1
    assert grown["streams_refused_total"] == 1
    assert grown["audio_seconds_total"] == pytest.approx((len(samples) + 1600 * len(streams)) / 16000)
    mel_frames = len(samples) // 160 + 7  # 7 are virtual; a chunk has 56
    assert grown["chunks_total"] == -(-mel_frames // 56) + 1  # the stream that was ended early has one
    assert 0 <= grown["chunks_late_total"] <= grown["chunks_total"]
