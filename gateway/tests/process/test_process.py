"""The command as a process: its ports, its signals, its exit status."""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from websockets.sync.client import connect

from penstock_gateway.process import serving
from penstock_gateway.process.main import main
from penstock_gateway.riva.service import SERVICE

COMMAND = (sys.executable, "-m", "penstock_gateway")
SECOND = b"\x00\x20" * 24_000
TLS = Path(__file__).parents[1] / "helpers" / "tls"
FREE_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@contextlib.contextmanager
def started(*words):
    """A gateway, and its HTTP and metrics ports. All ports accept connections once its log has their addresses."""
    command = [*COMMAND, *FREE_PORTS, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            lines = iter(process.stderr.readline, "")
            address = r"gateway at http://127\.0\.0\.1:(\d+) .* 127\.0\.0\.1:(\d+) .* metrics at port (\d+)"
            found = next(filter(None, (re.search(address, line) for line in lines)))
            http_port, grpc_port, metrics_port = map(int, found.groups())
            for port in (http_port, grpc_port, metrics_port):
                socket.create_connection(("127.0.0.1", port)).close()
            yield process, http_port, metrics_port
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


def test_a_signal_that_comes_twice_lets_live_streams_end(replica):
    with started("--replicas", replica) as (process, http_port, metrics_port):
        status, body = get(http_port, "/health/ready")
        assert (status, json.loads(body)) == (200, {"status": "ready", "models": ["fake"]})
        page = get(metrics_port, "/metrics")[1]
        assert "penstock_gateway_replicas_up" in page and "penstock_gateway_build_info{version=" in page
        assert "penstock_gateway_certificate_not_after_timestamp_seconds{" not in page
        with connect(f"ws://127.0.0.1:{http_port}/v1/realtime") as socket:
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(SECOND).decode()}))
            while not json.loads(socket.recv(60))["type"].endswith("speech_started"):
                pass
            for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # both at the same time
                process.send_signal(number)
            socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while "transcript" not in (event := json.loads(socket.recv(60))):
                assert event["type"] != "error"
        assert process.wait(60) == 0


def test_a_client_writes_no_line_of_its_own_into_the_log(replica):
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as free:
        grpc_port = free.getsockname()[1]
    with started("--replicas", replica, "--grpc-port", str(grpc_port)) as (process, http_port, _):
        get(http_port, "/health/ready")
        body = json.dumps({"a\n2026 INFO stream\x1b[2J\u2028": 1}).encode()
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"http://127.0.0.1:{http_port}/v1/realtime/client_secrets", body)
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, pytest.raises(grpc.RpcError) as rejected:
            channel.unary_unary(f"/{SERVICE}/Recognize")(bytes(9999), compression=grpc.Compression.Gzip)
        assert rejected.value.code() is grpc.StatusCode.UNIMPLEMENTED
        process.terminate()
        lines = process.stderr.read().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \w+ +gateway: ", line) for line in lines)
    assert any(r"body.a\n2026 INFO stream\u001b[2J\u2028 is unknown" in line for line in lines)


def run(*words):
    return subprocess.run([*COMMAND, *FREE_PORTS, *words], capture_output=True, text=True, timeout=60)


def test_numpy_starts_no_threads():
    """On many cores they would take several times the CPU time of one for each part of audio."""
    program = "import penstock_gateway.process.main, numpy, os; print(len(os.listdir('/proc/self/task')))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "1\n"


def test_wrong_flags_and_files_are_named(tmp_path, replica, monkeypatch, capsys):
    """Before the gateway starts."""
    monkeypatch.setattr(serving, "run_gateway", lambda *_: pytest.fail("it has started"))
    keys, secret, fifo = tmp_path / "keys", tmp_path / "secret", tmp_path / "fifo"
    os.mkfifo(fifo)
    keys.write_text("shop 1234 5\n")
    secret.write_bytes(b"short")
    for words, named in (
        (["--replicas", "nowhere"], "SETTING_INVALID: --replicas"),
        (["--listen", "localhost"], "--listen is 'localhost'; accepted: an IP address of this machine"),
        (["--metrics-listen", "2001:db8::77"], "--metrics-listen is '2001:db8::77'; accepted: an IP address of this"),
        (["--keys", str(keys)], "line 1"),
        (["--keys", str(tmp_path / "none")], f"SETTING_INVALID: --keys is '{tmp_path}/none': no such file"),
        (["--secret", str(secret)], f"SETTING_INVALID: --secret is '{secret}': has 5 bytes; accepted: 32 or more"),
        (["--keys", str(fifo)], f"SETTING_INVALID: --keys is '{fifo}': it is a fifo; accepted: a regular file"),
        (["--secret", "/dev/zero"], "SETTING_INVALID: --secret is '/dev/zero': it is a device"),
        (["--tls-cert", str(tmp_path), "--tls-key", str(fifo)], f"--tls-cert is '{tmp_path}': it is a directory"),
        (["--tls-cert", str(secret), "--tls-key", str(tmp_path / "none")], "none"),
        (["--tls-cert", str(secret), "--tls-key", str(keys)], f"--tls-cert {secret}, --tls-key {keys}: no PEM"),
        (["--tls-cert", str(TLS / "cert.pem"), "--tls-key", str(keys)], "no PEM"),
    ):
        assert main([*FREE_PORTS, "--replicas", replica, *words]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("penstock-gateway: error: SETTING_INVALID: ") and not out
        assert named in err


@pytest.mark.parametrize(
    "words", [["--http-port"], ["--grpc-port"], pytest.param(["--metrics-port"], marks=pytest.mark.nightly)]
)
def test_a_port_in_use_is_named(replica, words):
    port = replica.rpartition(":")[2]
    done = run("--replicas", replica, *words, port)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("penstock-gateway: error: PORT_UNAVAILABLE: ")
    assert f"port {port}: address already in use; choose another port with {words[-1]} or PENS" in done.stderr
