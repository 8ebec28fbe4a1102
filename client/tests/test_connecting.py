"""Connections that fail at first or for good: each protocol."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from client.tests.helpers.fake_servers import Wire, eventually
from client.tests.helpers.fakes import expected
from penstock_client import Client, ConnectionOptions, ServerUnreachableError

pytestmark = pytest.mark.usefixtures("no_tasks_left")


def is_reachable(client):
    try:
        return client.transcribe(np.zeros(10)).is_complete
    except ServerUnreachableError:
        return False


def test_a_server_that_starts_later_is_found_by_the_same_client(
    protocol, recognizer, server, closed_socket, closed_url
):
    with Client(closed_url, protocol) as client:
        with pytest.raises(ServerUnreachableError):
            client.transcribe(np.zeros(10))
        wire = Wire(server.port, bound=closed_socket)
        eventually(lambda: is_reachable(client))  # gRPC retries after a second
        wire.close()


def test_a_server_that_starts_within_the_retries_receives_everything_once(
    protocol, recognizer, server, samples, closed_socket, closed_url
):
    wires = []
    opening = threading.Timer(0.4, lambda: wires.append(Wire(server.port, bound=closed_socket)))
    opening.start()
    options = ConnectionOptions(connect_retry_s=60)
    with Client(closed_url, protocol, timeout_s=60, connection_options=options) as client:
        assert client.transcribe(samples).text == expected(samples).text
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), samples)
    wires[0].close()


def test_a_stream_closed_while_connecting_sends_nothing(protocol, recognizer, closed_url):
    options = ConnectionOptions(connect_retry_s=300)
    start_s = time.monotonic()
    with Client(closed_url, protocol, connection_options=options) as client, client.open_stream() as stream:
        stream.send([0.0])
        time.sleep(0.2)
    assert time.monotonic() - start_s < 60


def test_no_connection_within_the_timeout_is_an_unreachable_server(protocol):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as filler:
        address = listener.getsockname()
        filler.connect(address)  # the queue is full: the next connection gets no reply
        with socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            url = "{}:{}".format(*address)
            with (
                Client(url, protocol, timeout_s=0.4) as client,
                pytest.raises(ServerUnreachableError, match=f"{url}: no connection for 0.4 s"),
            ):
                client.transcribe(np.zeros(10))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_short_lived_clients_leave_no_failing_thread(url):
    for _ in range(5):
        with Client(url) as client, ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: client.transcribe(np.zeros(800)).text, range(8)))
