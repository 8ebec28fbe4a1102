"""The client against the other ports of a real server."""

import numpy as np
import pytest

from penstock_client import Client, ServerUnreachableError
from penstock_client.transport import probe

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "port, protocol, advice",
    [
        ("grpc", "http", "this port speaks gRPC"),
        ("http", "grpc", "this port speaks HTTP"),
        ("http", "https", "this port speaks HTTP without TLS"),
        ("metrics", "grpc", "this is a server's metrics port"),
        ("metrics", "http", "this is a server's metrics port"),
    ],
)
def test_the_error_says_which_port_it_is(server, monkeypatch, port, protocol, advice):
    monkeypatch.setattr(probe, "_PROBE_S", 60.0)  # a busy machine may be slow
    with (
        Client(server.url(port), protocol, timeout_s=400) as client,
        pytest.raises(ServerUnreachableError, match=f"{server.url(port)}: {advice}"),
    ):
        client.transcribe(np.zeros(1600, np.float32))
