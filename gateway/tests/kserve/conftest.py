import contextlib
import hashlib
from dataclasses import dataclass

import pytest

from gateway.tests.helpers.running import Running, running
from gateway.tests.stream.conftest import metrics, open_streams, server, servers, until  # noqa: F401
from penstock_gateway.config import Config
from penstock_gateway.gateway import Gateway
from penstock_gateway.security.access import Access, Origins
from penstock_gateway.security.client_secrets import ClientSecrets
from penstock_gateway.security.keys import ApiKey, KeyRing
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.replica_streams import ReplicaStreams

MAX_STREAMS = 4
KEYS = ("one", "two")


def headers(key: str = "one") -> dict[str, str]:
    return {"authorization": f"Bearer sk-{key}"}


@dataclass(frozen=True)
class Served:
    ports: Running
    streams: ReplicaStreams


@pytest.fixture
def serve(open_streams, metrics):  # noqa: F811
    """`async with serve(server)`: a gateway with two keys on real sockets, before a server of streams of one word per
    50 ms. `fields`: of the gateway."""

    @contextlib.asynccontextmanager
    async def make(*servers, **fields):  # noqa: F811
        ring = KeyRing([(ApiKey(key, MAX_STREAMS), hashlib.sha256(f"sk-{key}".encode()).digest()) for key in KEYS])
        access = Access(ring, ClientSecrets(b"k" * 32, ring), Origins(()))
        async with (
            open_streams(*servers, admission=Admission()) as streams,
            running(Gateway(Config(), streams, access, metrics, **fields)) as ports,
        ):
            yield Served(ports, streams)

    return make
