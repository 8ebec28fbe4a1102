"""The command as a process: its ports, its signals, its exit status."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fakes import FakeRecognizer

COMMAND = (sys.executable, "-m", "penstock_gateway")
TLS = Path(__file__).parent / "helpers" / "tls"
FREE_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@pytest.fixture
def replica():
    server = BatchServer(FakeRecognizer())
    yield f"127.0.0.1:{server.port}"
    server.close()


@contextlib.contextmanager
def started(*words):
    """A gateway, and its HTTP and metrics ports."""
    with subprocess.Popen([*COMMAND, *FREE_PORTS, *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            found = re.search(r"gateway at http://127\.0\.0\.1:(\d+) .* metrics at port (\d+)", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1]), int(found[2])
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(60)


def get(port, path):
    """(status, body), as soon as the port answers."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_until_a_signal(replica, workers):
    with started("--replicas", replica, "--workers", str(workers)) as (process, http_port, metrics_port):
        status, body = get(http_port, "/health/ready")
        assert (status, json.loads(body)) == (200, {"status": "ready", "models": ["fake"]})
        assert "penstock_gateway_replicas_up" in get(metrics_port, "/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_without_a_replica_it_is_live_but_not_ready():
    with started("--replicas", "127.0.0.1:1", "--log-format", "text") as (_, http_port, _):
        assert get(http_port, "/health/live")[0] == 200
        assert get(http_port, "/health/ready")[0] == 503


def run(*words):
    return subprocess.run([*COMMAND, *FREE_PORTS, *words], capture_output=True, text=True, timeout=60)


def test_wrong_flags_files_and_ports_are_named(tmp_path, replica):
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    keys.write_text("shop 1234 5\n")
    secret.write_bytes(b"short")
    for words, named in (
        (["--replicas", "nowhere"], "--replicas"),
        (["--keys", str(keys)], "line 1"),
        (["--keys", str(tmp_path / "none")], "none"),
        (["--secret", str(secret)], "32 or more"),
        (["--tls-cert", str(secret), "--tls-key", str(tmp_path / "none")], "none"),
        (["--tls-cert", str(secret), "--tls-key", str(keys)], f"--tls-cert {secret}, --tls-key {keys}: no PEM"),
        (["--workers", "2", "--tls-cert", str(TLS / "cert.pem"), "--tls-key", str(keys)], "no PEM"),
    ):
        done = run("--replicas", replica, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert named in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--http-port"], ["--grpc-port"], ["--workers", "2", "--metrics-port"]])
def test_a_port_in_use_is_named(replica, words):
    port = replica.rpartition(":")[2]
    done = run("--replicas", replica, *words, port)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert f"port {port}: address already in use" in done.stderr
