"""Streams that wait while the server is full, over each protocol."""

import contextlib
import time

import numpy as np
import pytest

from client.tests.helpers.fake_servers import DRAINING, UNLOADED, Restart, eventually
from client.tests.helpers.fakes import RejectionError, expected
from penstock_client import Client, ConnectionOptions, ServerFullError, ServerUnreachableError, StreamError

pytestmark = pytest.mark.usefixtures("no_tasks_left")
WAIT = ConnectionOptions(wait_for_slot_s=60)


@pytest.fixture
def waiting_client(url, protocol):
    with Client(url, protocol, timeout_s=60, connection_options=WAIT) as client:
        yield client


def starts(recognizer):
    return [request for request in recognizer.requests if request.is_start]


@pytest.mark.parametrize("request_ms", [100, 5000], ids=["many requests", "one request"])
def test_a_stream_waits_for_a_slot_and_its_audio_is_taken_once(waiting_client, recognizer, samples, request_ms):
    recognizer.max_streams = 0

    def free_a_slot(request):
        recognizer.max_streams = int(len(starts(recognizer)) >= 4)

    recognizer.before_answer = free_a_slot
    assert waiting_client.transcribe(samples, request_ms=request_ms).text == expected(samples).text
    rejected, taken = recognizer.requests[:3], recognizer.requests[3:]
    assert all(request.is_start for request in [*rejected, taken[0]])
    assert np.array_equal(np.concatenate([request.samples for request in taken]), samples)


def test_the_error_comes_once_the_limit_has_passed(url, protocol, recognizer, samples):
    recognizer.max_streams = 0
    options = ConnectionOptions(wait_for_slot_s=0.3)
    with Client(url, protocol, timeout_s=60, connection_options=options) as client:
        with pytest.raises(ServerFullError, match="STREAM_LIMIT"):
            client.transcribe(samples, request_ms=100)
        assert len(starts(recognizer)) == 4  # after pauses of 50, 100 and 150 ms
        assert not any(request.samples.size for request in recognizer.requests if not request.is_start)


def test_without_the_option_a_full_server_is_an_error_at_once(client, recognizer, samples):
    recognizer.max_streams = 0
    with pytest.raises(ServerFullError):
        client.transcribe(samples, request_ms=5000)
    assert len(starts(recognizer)) == 1


def test_another_rejection_does_not_wait(waiting_client, recognizer, samples):
    def reject(request):
        raise RejectionError("in ensemble 'asr', OPTION_INVALID: no")

    recognizer.before_answer = reject
    with pytest.raises(StreamError, match="OPTION_INVALID"):
        waiting_client.transcribe(samples, request_ms=100)
    assert len(starts(recognizer)) == 1


def test_a_waiting_stream_can_be_closed(waiting_client, recognizer):
    recognizer.max_streams = 0
    with waiting_client.open_stream() as stream:
        stream.send([0.0] * 100)
        eventually(lambda: len(recognizer.requests) >= 2)
    known = len(starts(recognizer))
    time.sleep(0.3)
    assert len(starts(recognizer)) <= known + 1, "one may have been on its way"


@pytest.mark.parametrize("request_ms", [100, 5000], ids=["many requests", "one request"])
def test_a_stream_waits_for_a_server_that_drains_and_restarts(url, protocol, server, wire, samples, request_ms):
    """No audio was accepted, so all of it is sent to the new server."""
    with contextlib.closing(Restart(server, wire, messages=[DRAINING, DRAINING, UNLOADED])) as restart:
        with Client(url, protocol, timeout_s=60, connection_options=WAIT) as client:
            assert client.transcribe(samples, request_ms=request_ms).text == expected(samples).text
        taken = [request.samples for request in restart.recognizer.requests]
    assert np.array_equal(np.concatenate(taken), samples)


def test_a_server_that_does_not_return_fails_the_wait(url, protocol, recognizer, wire, samples):
    def stop(request):
        if len(recognizer.requests) == 2:
            wire.close()
        raise RejectionError(DRAINING, 503)

    recognizer.before_answer = stop
    options = ConnectionOptions(wait_for_slot_s=1.0)
    with (
        Client(url, protocol, timeout_s=60, connection_options=options) as client,
        pytest.raises(ServerUnreachableError, match=url),
    ):
        client.transcribe(samples)
