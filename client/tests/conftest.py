import asyncio
import os
import socket

import hypothesis
import numpy as np
import pytest
import soundfile

from client.tests.helpers.event_loop import ANYIO_BACKEND
from client.tests.helpers.fake_fleet import fleet_maker
from client.tests.helpers.fake_servers import GrpcServer, HttpServer, Wire, eventually
from client.tests.helpers.fakes import FakeRecognizer
from penstock_client import Client
from penstock_client.batched import link
from penstock_client.batched.blocking import event_loop_thread
from penstock_client.cli.main import main

hypothesis.settings.register_profile("penstock", deadline=None)  # a machine may be slow
hypothesis.settings.load_profile("penstock")


@pytest.fixture
def recognizer():
    return FakeRecognizer()


@pytest.fixture
def client(url, protocol):
    """A client of a server on a real socket."""
    with Client(url, protocol, timeout_s=60) as client:
        yield client


@pytest.fixture(params=["grpc", "http"])
def protocol(request):
    return request.param


@pytest.fixture
def server(protocol, recognizer):
    server = {"grpc": GrpcServer, "http": HttpServer}[protocol](recognizer)
    yield server
    server.close()


@pytest.fixture
def servers():
    """Makes servers of one model."""
    with fleet_maker() as make:
        yield make


@pytest.fixture
def wire(server):
    wire = Wire(server.port)
    yield wire
    wire.close()


@pytest.fixture
def url(wire):
    return f"127.0.0.1:{wire.port}"


@pytest.fixture
def closed_socket():
    """Rejects connections, and no other process takes its port: it is bound and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def closed_url(closed_socket):
    return "{}:{}".format(*closed_socket.getsockname())


@pytest.fixture
def samples():
    """2.4 s of noise."""
    return np.random.default_rng(0).normal(0, 0.1, 38_400).astype(np.float32)


@pytest.fixture
def audio_file(tmp_path, samples):
    path = tmp_path / "speech.wav"
    soundfile.write(path, samples, 16_000, subtype="FLOAT")
    return path


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.fixture
def one_row_per_request(monkeypatch):
    """A row that waits in the server holds back no answers to earlier ones."""
    monkeypatch.setattr(link, "MAX_ROWS", 1)


@pytest.fixture
def no_tasks_left():
    """Fails a test that leaves one of a stream's tasks behind."""
    yield
    wait_for_tasks()


def wait_for_tasks():
    async def left():
        own = [task for task in asyncio.all_tasks() if task.get_name().startswith("penstock ")]
        return [task for task in own if not task.get_name().startswith("penstock batched")]  # the connection's

    eventually(lambda: not event_loop_thread().call(left()))


@pytest.fixture
def run(url, protocol, capsys):
    """Runs the command in this process: (status, standard output, standard error)."""

    def run(*arguments):
        status = main([*map(str, arguments), "--url", url, "--protocol", protocol])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def anyio_backend():
    """The loop of the tests that are coroutines."""
    return ANYIO_BACKEND
