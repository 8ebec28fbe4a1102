"""Wrong ports and protocols: the error says what the protocol needs."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest

from client.tests.helpers.fake_servers import THREADS_NAME, GrpcServer, HttpServer
from penstock_client import Client, ServerUnreachableError

TIMEOUT_S = 400.0
GRPC_PORT, HTTP_PORT = r"gRPC port \(8001 by default\)", r"HTTP port \(8000 by default\)"


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
    ("server", "protocol", "reason"),
    [
        ("grpc", "http", "the reply is not HTTP"),
        ("http", "grpc", ".+"),
        ("grpc", "grpcs", ".+"),
        ("http", "https", ".+"),
        ("metrics", "grpc", ".+"),
        ("metrics", "http", ".+"),
        ("grpc gateway", "grpc", "this is no Penstock server, but perhaps its gateway"),
        ("http gateway", "http", "this is no Penstock server, but perhaps its gateway"),
    ],
)
def test_the_error_says_what_the_protocol_needs(recognizer, server, protocol, reason):
    with closing(SERVERS[server](recognizer)) as running:
        url = f"127.0.0.1:{running.port}"
        port = GRPC_PORT if protocol.startswith("grpc") else HTTP_PORT
        needs = f"protocol '{protocol}' needs a server's {port}, {'with' if protocol.endswith('s') else 'without'} TLS"
        with (
            Client(url, protocol, timeout_s=TIMEOUT_S) as client,
            pytest.raises(
                ServerUnreachableError, match=f"^SERVER_UNREACHABLE: cannot reach a server at {url}: {reason}; {needs}$"
            ),
        ):
            client.transcribe(np.zeros(10))
    assert recognizer.requests == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_nothing_answers(closed_socket, protocol):
    url = "localhost:{1}".format(*closed_socket.getsockname())
    with (
        Client(url, protocol, timeout_s=TIMEOUT_S) as client,
        pytest.raises(ServerUnreachableError, match=f"cannot reach a server at {url}: .*refused$"),
    ):
        client.transcribe(np.zeros(10))
