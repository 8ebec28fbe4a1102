"""The gateway's process beside a server: it serves, stops with the server, and its end is noticed."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import FakeRecognizer
from penstock.errors import PackageError, SettingError
from penstock.serving import gateway_process
from penstock.serving.gateway_process import GatewayProcess, check_gateway
from penstock.serving.launch import Ports, claim_ports

TLS = Path(__file__).parents[2] / "gateway" / "tests" / "helpers" / "tls"


@pytest.fixture
def replica():
    server = GrpcServer(FakeRecognizer())
    yield server
    server.close()


@pytest.fixture
def gateway_ports(monkeypatch):
    ports = claim_ports(Ports(0, 0, 0), "127.0.0.1")[0]
    for name, port in (("HTTP", ports.http), ("GRPC", ports.grpc), ("METRICS", ports.metrics)):
        monkeypatch.setenv(f"PENSTOCK_GATEWAY_{name}_PORT", str(port))
    return check_gateway()


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


def test_it_serves_the_servers_model_until_it_is_stopped(replica, gateway_ports, capfd):
    """The gateway's log has the server's format."""
    ended = []
    with GatewayProcess(f"127.0.0.1:{replica.port}", gateway_ports, 8, "json", ended.append) as gateway:
        assert not gateway.is_ready()
        assert get_models(gateway_ports.ports[0].port) == ["fake"]
        assert gateway.is_ready()
        gateway.stop()
    assert not ended
    assert not gateway.has_failed
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{gateway_ports.ports[0].port}/health/live", timeout=60)
    assert '"source": "gateway", "message": "gateway at http://127.0.0.1:' in capfd.readouterr().err


def test_it_says_how_to_use_it(gateway_ports):
    def invitation(**changes):
        return GatewayProcess("127.0.0.1:1", gateway_ports._replace(**changes), 8, "text", print).invitation()

    url = f"http://127.0.0.1:{gateway_ports.ports[0].port}"
    command = f"try: curl {url}/v1/audio/transcriptions -F file=@yours.wav -F model=whisper-1"
    assert invitation() == [command, f"live captions: {url}/captions"]
    secured = invitation(listen="::1", is_tls=True, has_keys=True, has_captions=False)
    assert len(secured) == 1
    assert secured[0].startswith("try: curl -k -H 'Authorization: Bearer KEY' https://[::1]:")


def test_an_end_by_itself_is_reported(replica, gateway_ports):
    statuses, has_ended = [], threading.Event()

    def on_end(status):
        statuses.append(status)
        has_ended.set()

    with (
        socket.create_server(("127.0.0.1", gateway_ports.ports[0].port)),
        GatewayProcess(f"127.0.0.1:{replica.port}", gateway_ports, 8, "text", on_end) as gateway,
    ):
        assert has_ended.wait(60)
    assert (statuses, gateway.has_failed) == ([2], True)


def test_tls_does_not_hide_that_it_is_ready(replica, gateway_ports, monkeypatch):
    for name in ("cert", "key"):
        monkeypatch.setenv(f"PENSTOCK_GATEWAY_TLS_{name.upper()}", str(TLS / f"{name}.pem"))
    with GatewayProcess(f"127.0.0.1:{replica.port}", check_gateway(), 8, "text", lambda status: None) as gateway:
        deadline_s = time.monotonic() + 60
        while not gateway.is_ready():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KEYS", "/nonexist", "PENSTOCK_GATEWAY_KEYS is '/nonexist': no such file"),
        ("ENDPOINT_STATE", "neither", "PENSTOCK_GATEWAY_ENDPOINT_STATE is 'neither'; accepted: reset, carry"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(name, value, message):
    with pytest.raises(SettingError, match=f"^SETTING_INVALID: {message}$"):
        check_gateway({f"PENSTOCK_GATEWAY_{name}": value})


def test_without_the_wheel_it_is_named(monkeypatch):
    check_gateway()
    monkeypatch.setattr(gateway_process, "_PACKAGE", "no_such_package")
    with pytest.raises(PackageError, match="penstock-gateway"):
        check_gateway()
