"""A client that goes on after lost connections to a real server has the same words, times and tokens."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from client.tests.helpers.fake_servers import Wire
from penstock_client import Client, ConnectionOptions, StreamOptions, read_audio
from penstock_client.batched.replay import Replay

pytestmark = pytest.mark.server

FLAC = Path(__file__).parents[1] / "data" / "an4" / "flac"
OPTIONS = ConnectionOptions(reconnect_s=120)


@pytest.mark.parametrize(("protocol", "endpoints"), [("http", {}), ("grpc", {"endpoint_silence_ms": 400})])
def test_cut_connections_leave_no_gap(server, protocol, endpoints, monkeypatch):
    starts, restart = [], Replay.restart
    monkeypatch.setattr(
        Replay, "restart", lambda replay, *given: starts.append(replay.segment_start_samples) or restart(replay, *given)
    )
    pause = np.zeros(16_000 if endpoints else 0, np.float32)
    parts = [part for path in sorted(FLAC.glob("*.flac"))[:3] for part in (read_audio(path), pause)]
    samples, finalize_every = np.concatenate(parts), 24 if endpoints else 8

    def transcribe(url, on_result=lambda: None):
        with (
            Client(url, protocol, timeout_s=60, connection_options=OPTIONS) as client,
            client.open_stream(options=StreamOptions(**endpoints)) as stream,
        ):
            for number, block in enumerate(np.array_split(samples, 30), start=1):
                (stream.send if number % finalize_every else stream.finalize)(block)
                for _ in stream.poll(0.5):  # a block may complete no chunk
                    on_result()
            stream.finish()
            for _ in stream:
                on_result()
            return stream.transcript

    with contextlib.closing(Wire(getattr(server.ports, protocol))) as wire:
        results = 0

        def cut_sometimes():
            nonlocal results
            results += 1
            if results in ((6, 12, 18) if endpoints else (3, 6, 9)):
                wire.cut()

        resumed = transcribe(f"127.0.0.1:{wire.port}", cut_sometimes)
    whole = transcribe(server.url(protocol))
    assert results > (18 if endpoints else 9)
    assert [segment.text for segment in resumed.segments] == [segment.text for segment in whole.segments]
    assert len(whole.segments) > 3
    # Over HTTP a cut between two requests costs a connection, no stream.
    assert protocol == "http" or any(starts)
    assert (resumed.text, resumed.tokens, resumed.timestamps) == (whole.text, whole.tokens, whole.timestamps)
    assert [(word.text, word.start_ms, word.end_ms) for word in resumed.words] == [
        (word.text, word.start_ms, word.end_ms) for word in whole.words
    ]
