"""Streams send whole chunks of the server's model, which publishes where they end."""

import asyncio

import numpy as np
import pytest

from client.tests.helpers.fake_servers import Wire, eventually
from client.tests.helpers.fakes import FakeRecognizer, expected
from penstock_client import AsyncClient, Client, ConnectionOptions
from penstock_client.batched import server_offer

pytestmark = pytest.mark.anyio


FIRST, CHUNK = 700, 1000
WAIT_S = 60


@pytest.fixture
def recognizer():
    recognizer = FakeRecognizer()
    recognizer.server_parameters |= {"first_chunk_samples": str(FIRST), "chunk_samples": str(CHUNK)}
    return recognizer


def sizes(recognizer: FakeRecognizer) -> list[int]:
    return [request.samples.size for request in recognizer.requests]


def test_a_recording_has_the_words_of_one_request(client, recognizer, samples):
    transcript = client.transcribe(samples, request_ms=10)
    whole = expected(samples)
    assert (transcript.text, transcript.tokens) == (whole.text, list(whole.new_tokens))
    assert sizes(recognizer) == [700, *[1000] * 37, 700]


def test_without_alignment_each_send_is_a_request(url, protocol, recognizer):
    with Client(url, protocol, timeout_s=WAIT_S, align=False) as client:
        client.transcribe(np.zeros(500, np.float32), request_ms=10)
    assert sizes(recognizer) == [160, 160, 160, 20]


def test_samples_that_wait_are_counted(url, protocol):
    with Client(url, protocol, timeout_s=WAIT_S) as client, client.open_stream() as stream:
        for count in (300, 600, 200, 500):
            stream.send(np.zeros(300, np.float32))
            eventually(lambda: stream.held_samples == count)  # noqa: B023
        stream.finish()
        assert stream.held_samples == 0
        list(stream)


async def test_the_chunks_are_read_once_per_connection(url, protocol, monkeypatch):
    reads, read = [], server_offer.read_parameters
    monkeypatch.setattr(server_offer, "read_parameters", lambda *given: reads.append(given) or read(*given))

    async with AsyncClient(url, protocol, timeout_s=WAIT_S) as client:
        await asyncio.gather(*(client.transcribe(np.zeros(500, np.float32)) for _ in range(4)))
    with Client(url, protocol, timeout_s=WAIT_S) as client:
        for _ in range(3):
            client.transcribe(np.zeros(500, np.float32))
    assert len(reads) == 2


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
