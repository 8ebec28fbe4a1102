import contextlib

import pytest

from client.tests.helpers.fake_fleet import fleet_maker
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import FakeRecognizer
from penstock_gateway import limits
from penstock_gateway.config import Config, ReplicaGroup
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.metrics import Metrics
from penstock_gateway.stream.replica_streams import ReplicaStreams


@pytest.fixture
def servers():
    """Makes servers: each a word per 50 ms of audio."""
    with contextlib.ExitStack() as stack:

        def make(max_streams: int = 8, **parameters: str) -> GrpcServer:
            recognizer = FakeRecognizer(max_streams)
            recognizer.server_parameters |= {"max_streams": str(max_streams), **parameters}
            server = GrpcServer(recognizer)
            stack.callback(server.close)
            return server

        yield make


@pytest.fixture
def fleet():
    """Makes servers that move streams between them."""
    with fleet_maker() as make:
        yield make


@pytest.fixture
def server(servers):
    return servers()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def open_streams(metrics, monkeypatch):
    """`async with open_streams(server, ...)`: the streams of a gateway on these servers, as one group."""
    monkeypatch.setattr(limits, "LATE_S", 3600.0)  # a machine may stall

    @contextlib.asynccontextmanager
    async def make(*servers, groups=None, admission=None, **options):
        addresses = tuple(f"127.0.0.1:{server.port}" for server in servers)
        options.setdefault("timeout_s", 60.0)  # a machine may stall
        config = Config(replicas=groups or (ReplicaGroup("", addresses),), **options)
        streams = ReplicaStreams(config, admission or Admission(), metrics)
        await streams.start()
        try:
            yield streams
        finally:
            await streams.close()

    return make
