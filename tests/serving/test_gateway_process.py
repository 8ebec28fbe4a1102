"""The gateway's process beside a server: it serves, stops with the server, and its end is noticed."""

import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fakes import FakeRecognizer
from penstock.errors import PackageError
from penstock.serving import gateway_process
from penstock.serving.gateway_process import GatewayProcess, check_gateway
from penstock.serving.ports import Ports, claim_ports


@pytest.fixture
def replica():
    server = BatchServer(FakeRecognizer())
    yield server
    server.close()


@pytest.fixture
def gateway_ports(monkeypatch):
    ports = claim_ports(Ports(0, 0, 0), "127.0.0.1")
    for name, port in (("HTTP", ports.http), ("GRPC", ports.grpc), ("METRICS", ports.metrics)):
        monkeypatch.setenv(f"PENSTOCK_GATEWAY_{name}_PORT", str(port))
    return ports


def get_models(port):
    """The ids of `/v1/models`, as soon as the port answers."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as response:
                return [model["id"] for model in json.load(response)["data"]]
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_it_serves_the_servers_model_until_it_is_stopped(replica, gateway_ports):
    ended = []
    with GatewayProcess(replica.port, 8, "text", ended.append) as gateway:
        assert get_models(gateway_ports.http) == ["fake"]
        gateway.stop()
    assert not ended
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{gateway_ports.http}/health/live", timeout=60)


def test_its_log_has_the_servers_format(replica, gateway_ports, capfd):
    with GatewayProcess(replica.port, 8, "json", lambda status: None):
        get_models(gateway_ports.http)
    assert '"message": "gateway at http://127.0.0.1:' in capfd.readouterr().err


def test_an_end_by_itself_is_reported(replica, gateway_ports, monkeypatch):
    monkeypatch.setenv("PENSTOCK_GATEWAY_ENDPOINT_STATE", "neither")
    statuses, has_ended = [], threading.Event()

    def on_end(status):
        statuses.append(status)
        has_ended.set()

    with GatewayProcess(replica.port, 8, "text", on_end):
        assert has_ended.wait(60)
    assert statuses == [2]


def test_without_the_wheel_it_is_named(monkeypatch):
    check_gateway()
    monkeypatch.setattr(gateway_process, "_PACKAGE", "no_such_package")
    with pytest.raises(PackageError, match="penstock-gateway"):
        check_gateway()
