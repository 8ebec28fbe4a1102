import contextlib
import hashlib
import threading
from dataclasses import dataclass

import pytest

from client.tests.helpers.fake_offline import OfflineRecognizer
from client.tests.helpers.fake_servers import GrpcServer
from gateway.tests.contract.call import Ports
from gateway.tests.helpers.running import Running, running
from gateway.tests.stream.conftest import fleet, metrics, open_streams, servers  # noqa: F401
from penstock_gateway.config import Config
from penstock_gateway.gateway import Gateway
from penstock_gateway.security.access import Access, ClientSecrets, Origins
from penstock_gateway.security.keys import ApiKey, KeyRing
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.replica_stream import ReplicaStream
from penstock_gateway.stream.replica_streams import ReplicaStreams


@dataclass(frozen=True)
class Served:
    """A gateway on real sockets of this process."""

    gateway: Gateway
    streams: ReplicaStreams
    sockets: Running
    opened: list[ReplicaStream]

    @property
    def ports(self) -> Ports:
        """For drivers."""
        return Ports(f"127.0.0.1:{self.sockets.http_port}", self.sockets.grpc_address)


@pytest.fixture
def serve(open_streams, metrics, monkeypatch):  # noqa: F811
    """`async with serve(server, ..., keys=[...])`: a gateway. Clients send the key "one" as "sk-one"."""

    @contextlib.asynccontextmanager
    async def make(*servers, keys: list[ApiKey] | None = None, admission=None, groups=None, messages=None, **fields):  # noqa: F811
        digests = [(key, hashlib.sha256(f"sk-{key.name}".encode()).digest()) for key in keys or []]
        ring = KeyRing(digests or None)
        access = Access(ring, ClientSecrets(b"k" * 32, ring), Origins(()))
        opened: list[ReplicaStream] = []
        async with open_streams(*servers, groups=groups, admission=admission or Admission(), **fields) as streams:
            open_one = streams.open

            async def note(*arguments):
                opened.append(await open_one(*arguments))
                return opened[-1]

            monkeypatch.setattr(streams, "open", note)
            gateway = Gateway(
                Config(**fields), streams, access, metrics, **({"messages": messages} if messages else {})
            )
            async with running(gateway) as sockets:
                yield Served(gateway, streams, sockets, opened)

    return make


@pytest.fixture
def offline():
    """A server of an offline model."""
    server = GrpcServer(OfflineRecognizer())
    yield server
    server.close()


@pytest.fixture
def gate():
    """`gate(server)`: an event that the audio of all its streams waits for."""
    made = []

    def close(server) -> threading.Event:
        made.append(threading.Event())
        server.batch.before_row = lambda samples, _: samples and made[-1].wait(60)
        return made[-1]

    yield close
    for event in made:
        event.set()
