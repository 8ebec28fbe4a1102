import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.cli import main
from penstock.errors import StreamError
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable
from penstock.serving.health import HTTP_PORT, probe
from penstock.serving.settings import ServeOptions

FINAL = {
    "outputs": [
        {"name": "IS_FINAL", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
        {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [""]},
    ]
}


@pytest.fixture
def serve():
    """Starts an HTTP server that answers every POST with what a function says; returns its address and requests."""
    servers = []

    def start(answer: Callable[[dict], tuple[int, bytes]]) -> tuple[str, list[tuple[str, dict]]]:
        requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append((self.path, body))
                status, reply = answer(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}", requests

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def raw_server():
    """Starts a TCP server that hands each connection to a function; returns its address."""
    listeners, is_over = [], threading.Event()

    def start(talk: Callable[[socket.socket, threading.Event], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run():
            connection, _ = listener.accept()
            with connection:
                talk(connection, is_over)

        threading.Thread(target=run, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    is_over.set()
    for listener in listeners:
        listener.close()


def test_a_final_answer_is_healthy(serve):
    address, requests = serve(lambda body: (200, json.dumps(FINAL).encode()))
    assert probe(f"http://{address}").is_healthy
    assert probe(address).is_healthy
    (path, first), (_, second) = requests
    assert path == "/v2/models/asr/infer"
    assert first["inputs"] == [{"name": "AUDIO", "shape": [1, 0], "datatype": "FP32", "data": []}]
    assert first["parameters"]["sequence_start"] is first["parameters"]["sequence_end"] is True
    assert first["parameters"]["sequence_id"] != second["parameters"]["sequence_id"]


def test_a_full_server_is_healthy(serve):
    table = StreamTable(1, SlotLedger(3))
    table.open("busy")
    with pytest.raises(StreamError) as rejection:
        table.open("probe")
    text = json.dumps({"error": f"in ensemble 'asr', {rejection.value}"}).encode()
    health = probe(serve(lambda body: (503, text))[0])
    assert health.is_healthy
    assert "full, but alive" in health.reason


def test_a_server_is_ready_only_with_room_for_a_stream(serve, capsys):
    address, _ = serve(lambda body: (200, json.dumps(FINAL).encode()))
    assert main(["health", "--ready", "--url", address]) == 0
    for code in ("STREAM_LIMIT", "SERVER_DRAINING"):
        text = json.dumps({"error": f"in ensemble 'asr', {code}: stream 'x' rejected"}).encode()
        address, _ = serve(lambda body, text=text: (503, text))
        assert main(["health", "--ready", "--url", address]) == 1
        assert code in capsys.readouterr().err


def test_a_dead_member_is_unhealthy_with_the_servers_words(serve):
    text = b"{\"error\":\"in ensemble 'asr', Stub process 'encoder_0_0' is not healthy.\"}"
    health = probe(serve(lambda body: (500, text))[0])
    assert not health.is_healthy
    assert "Stub process 'encoder_0_0' is not healthy." in health.reason


@pytest.mark.parametrize(
    ("status", "reply"),
    [(200, b"hello"), (200, b"[]"), (200, b'{"outputs": []}'), (404, b"<html>"), (500, b'{"error": '), (200, b"\xff")],
)
def test_another_kind_of_server_is_unhealthy(serve, status, reply):
    health = probe(serve(lambda body: (status, reply))[0])
    assert not health.is_healthy
    assert "not a response of a Penstock server" in health.reason


def test_a_server_that_does_not_answer_is_unhealthy_in_time(raw_server):
    address = raw_server(lambda connection, is_over: is_over.wait())
    health = probe(address, timeout_s=0.3)
    assert not health.is_healthy
    assert health.reason == f"{address}: no answer within 0.3 s"


def test_a_server_that_answers_byte_by_byte_is_unhealthy_in_time(raw_server):
    def drip(connection, is_over):
        while not is_over.wait(0.05):
            try:
                connection.sendall(b"H")
            except OSError:
                return

    health = probe(raw_server(drip), timeout_s=0.3)
    assert not health.is_healthy
    assert "no answer within" in health.reason


def test_garbage_and_a_closed_connection_are_unhealthy(raw_server):
    for reply in (b"SSH-2.0-x\r\n", b""):
        assert not probe(raw_server(lambda connection, _, reply=reply: connection.sendall(reply))).is_healthy


def test_the_command_prints_one_line_and_says_it_with_its_status(serve, capsys):
    address, _ = serve(lambda body: (200, json.dumps(FINAL).encode()))
    assert main(["health", "--url", address]) == 0
    assert capsys.readouterr().out.startswith(f"healthy: {address}: all models answered")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert main(["health", "--url", address]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"unhealthy: {address}: ")
    assert output.err.count("\n") == 1
    assert main(["health", "--timeout", "0"]) == 1


def test_the_command_asks_the_port_that_the_server_was_told(serve, capsys, monkeypatch):
    address, requests = serve(lambda body: (200, json.dumps(FINAL).encode()))
    option = ServeOptions.option("http_port")
    assert option.default == HTTP_PORT
    monkeypatch.setenv(option.variable, address.rpartition(":")[2])
    assert main(["health"]) == 0
    assert len(requests) == 1
    for wrong, message in (("0", "PENSTOCK_HTTP_PORT is 0 (any free port)"), ("x", "is 'x'; accepted: ")):
        monkeypatch.setenv("PENSTOCK_HTTP_PORT", wrong)
        assert main(["health"]) == 1
        assert message in capsys.readouterr().err
