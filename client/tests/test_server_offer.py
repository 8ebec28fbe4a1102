"""Wrong ports and protocols: the error says what answers there, and what to use."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest

from client.tests.helpers.certificates import make_certificates
from client.tests.helpers.fake_servers import THREADS_NAME, GrpcServer, HttpServer
from client.tests.helpers.fakes import FakeRecognizer
from penstock_client import Client, ServerUnreachableError, limits
from penstock_client.batched import probe
from penstock_client.connection import Endpoint

TIMEOUT_S = 400.0
GRPC_PORT, HTTP_PORT = r"gRPC port \(8001 by default\)", r"HTTP port \(8000 by default\)"


@pytest.fixture(autouse=True)
def ample_time(monkeypatch):
    monkeypatch.setattr(limits, "OFFER_S", 60.0)


class _MetricsHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._reply(200, b"# HELP nv_inference_count\nnv_inference_count 1\n" if self.path == "/metrics" else b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(405, json.dumps({"error": "Method Not Allowed"}).encode())

    def _reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class _GatewayHandler(_MetricsHandler):
    def do_GET(self):
        self._reply(404, json.dumps({"error": {"message": "Not Found", "code": None}}).encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()


class MetricsServer:
    """The metrics port of Triton."""

    handler_class: type[BaseHTTPRequestHandler] = _MetricsHandler

    def __init__(self, recognizer):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler_class)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class HttpGateway(MetricsServer):
    """A gateway's HTTP port, which does not know KServe v2."""

    handler_class = _GatewayHandler


class GrpcGateway:
    """A gateway's gRPC port, which does not know KServe v2."""

    def __init__(self, recognizer):
        self._server = grpc.server(ThreadPoolExecutor(2, THREADS_NAME))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self):
        self._server.stop(None).wait()


SERVERS = {
    "grpc": GrpcServer, "http": HttpServer, "metrics": MetricsServer, "grpc gateway": GrpcGateway,
    "http gateway": HttpGateway,
}  # fmt: skip


@pytest.mark.parametrize(
    "server, protocol, advice",
    [
        ("grpc", "http", f"this port speaks gRPC; use protocol 'grpc', or the server's {HTTP_PORT}"),
        ("http", "grpc", f"this port speaks HTTP; use protocol 'http', or the server's {GRPC_PORT}"),
        ("grpc", "grpcs", "this port speaks gRPC without TLS; use protocol 'grpc'"),
        ("http", "https", "this port speaks HTTP without TLS; use protocol 'http'"),
        ("metrics", "grpc", f"this is a server's metrics port; use its {GRPC_PORT}"),
        ("metrics", "http", f"this is a server's metrics port; use its {HTTP_PORT}"),
        ("grpc gateway", "grpc", f"this is no Penstock server, but perhaps its gateway; use the server's {GRPC_PORT}"),
        ("http gateway", "http", f"this is no Penstock server, but perhaps its gateway; use the server's {HTTP_PORT}"),
    ],
)
def test_the_error_says_what_answers(recognizer, server, protocol, advice):
    with closing(SERVERS[server](recognizer)) as running:
        url = f"127.0.0.1:{running.port}"
        with (
            Client(url, protocol, timeout_s=TIMEOUT_S) as client,
            pytest.raises(
                ServerUnreachableError, match=f"SERVER_UNREACHABLE: cannot reach a server at {url}: {advice}$"
            ),
        ):
            client.transcribe(np.zeros(10))
    assert recognizer.requests == []


@pytest.mark.parametrize("server, protocol", [(GrpcServer, "grpc"), (HttpServer, "http")])
def test_servers_with_tls(tmp_path, server, protocol):
    with closing(server(FakeRecognizer(), make_certificates(tmp_path))) as running:
        url = f"127.0.0.1:{running.port}"
        advice = f"this port requires TLS; use protocol '{protocol}s'"
        assert probe.explain(Endpoint(url, protocol, timeout_s=TIMEOUT_S), "reason") == advice
        assert probe.explain(Endpoint(url, protocol + "s", timeout_s=TIMEOUT_S), "reason") == "reason"


@pytest.mark.parametrize("server", ["grpc", "http"])
def test_the_reason_stays_where_the_protocol_is_right(recognizer, server):
    with closing(SERVERS[server](recognizer)) as running:
        endpoint = Endpoint(f"127.0.0.1:{running.port}", server, timeout_s=TIMEOUT_S)
        assert probe.explain(endpoint, "reason") == "reason"


def test_the_reason_stays_where_something_else_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for _ in range(2):
                near, _ = listener.accept()
                near.recv(10)
                near.sendall(b"220 mail.example ESMTP\r\n")
                near.close()

        threading.Thread(target=answer, daemon=True).start()
        endpoint = Endpoint("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=TIMEOUT_S)
        assert probe.explain(endpoint, "reason") == "reason"


def test_a_silent_port_takes_a_part_of_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=0.4)
        assert probe.explain(endpoint, "reason") == "reason"


def test_nothing_answers(closed_socket):
    url = "localhost:{1}".format(*closed_socket.getsockname())
    assert probe.explain(Endpoint(url, timeout_s=TIMEOUT_S), "reason") == "connection refused"
