import hypothesis
import pytest

from client.tests.helpers.event_loop import ANYIO_BACKEND
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import FakeRecognizer
from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_gateway.config import Config
from penstock_gateway.gateway import Gateway
from penstock_gateway.security.access import Access, ClientSecrets, Origins
from penstock_gateway.security.keys import KeyRing
from penstock_gateway.stream.metrics import Metrics

hypothesis.settings.register_profile("penstock", deadline=None)  # a machine may stall
hypothesis.settings.load_profile("penstock")


@pytest.fixture
def streams():
    return FakeStreams()


@pytest.fixture
def make_gateway(streams):
    """A gateway with fake streams; `keys` and the fields of `Config` as keywords."""

    def make(keys: KeyRing | None = None, **options) -> Gateway:
        keys = keys or KeyRing()
        access = Access(keys, ClientSecrets(b"k" * 32, keys), Origins(options.get("origins", ())))
        return Gateway(Config(**options), streams, access, Metrics())

    return make


@pytest.fixture
def gateway(make_gateway):
    """A gateway with fake streams and no keys."""
    return make_gateway()


@pytest.fixture
def replica():
    """The address of a server."""
    server = GrpcServer(FakeRecognizer())
    yield f"127.0.0.1:{server.port}"
    server.close()


@pytest.fixture
def anyio_backend():
    """The loop of the tests that are coroutines."""
    return ANYIO_BACKEND
