"""Streams send whole chunks of the server's model, which publishes where they end."""

import numpy as np
import pytest

from client.tests.helpers.fake_servers import Wire
from client.tests.helpers.fakes import FakeRecognizer, expected
from penstock_client import Client, ConnectionOptions

FIRST, CHUNK = 700, 1000
WAIT_S = 60


@pytest.fixture
def recognizer():
    recognizer = FakeRecognizer()
    recognizer.server_parameters |= {"first_chunk_samples": str(FIRST), "chunk_samples": str(CHUNK)}
    return recognizer


def sizes(recognizer: FakeRecognizer) -> list[int]:
    return [request.samples.size for request in recognizer.requests]


def test_without_alignment_each_send_is_a_request(url, protocol, recognizer):
    with Client(url, protocol, timeout_s=WAIT_S, align=False) as client:
        client.transcribe(np.zeros(500, np.float32), request_ms=10)
    assert sizes(recognizer) == [160, 160, 160, 20]


def test_a_resumed_stream_sends_the_chunks_of_the_new_server(protocol, server, recognizer, samples):
    """The client's answers stay those of one connection."""
    wire = Wire(server.port)
    options = ConnectionOptions(reconnect_s=WAIT_S)
    with (
        Client(f"127.0.0.1:{wire.port}", protocol, timeout_s=WAIT_S, connection_options=options) as client,
        client.open_stream() as stream,
    ):
        stream.send(samples[:3000])
        assert stream.poll(WAIT_S)
        port = wire.port
        wire.close()
        recognizer.received.clear()  # the new server knows no streams
        recognizer.server_parameters |= {"first_chunk_samples": "100", "chunk_samples": "200"}
        wire = Wire(server.port, port)
        stream.send(samples[3000:6000])
        assert stream.poll(WAIT_S)
        stream.send(samples[6000:6500])
        assert stream.held_samples == 0
        stream.finish(samples[6500:9000])
        list(stream)
    wire.close()
    assert stream.transcript.text == expected(samples[:9000]).text
    assert [word.text for word in stream.transcript.words] == stream.transcript.text.split()
