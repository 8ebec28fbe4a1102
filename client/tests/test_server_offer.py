"""Wrong ports and protocols: the error says what the protocol needs."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from client.tests.helpers.fake_servers import THREADS_NAME, GrpcServer, HttpServer
from penstock_client import Client, ServerUnreachableError

TIMEOUT_S = 400.0
GRPC_PORT, HTTP_PORT = r"gRPC port \(8001 by default\)", r"HTTP port \(8000 by default\)"


class _HttpHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._reply(*self.server.get_reply)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(*self.server.post_reply)

    def _reply(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class HttpPort(ThreadingHTTPServer):
    """Answers every GET alike, and every POST."""

    def __init__(self, get_reply, post_reply):
        super().__init__(("127.0.0.1", 0), _HttpHandler)
        self.port, self.get_reply, self.post_reply = self.server_port, get_reply, post_reply
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class _WithoutModel(service_pb2_grpc.GRPCInferenceServiceServicer):
    def ModelConfig(self, request, context):  # noqa: N802
        context.abort(grpc.StatusCode.NOT_FOUND, UNKNOWN_MODEL)


class GrpcPort:
    """Knows KServe v2, but no model; without `is_triton`, not even KServe v2."""

    def __init__(self, is_triton):
        self._server = grpc.server(ThreadPoolExecutor(2, THREADS_NAME))
        if is_triton:
            service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_WithoutModel(), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self):
        self._server.stop(None).wait()


UNKNOWN_MODEL = "Request for unknown model: 'asr_batch' is not found"
NO_POST = (405, {"error": "Method Not Allowed"})
NOT_FOUND = (404, {"error": {"message": "Not Found", "code": None}})
SERVERS = {
    "grpc": GrpcServer,
    "http": HttpServer,
    "metrics": lambda _: HttpPort((200, ""), NO_POST),
    "grpc gateway": lambda _: GrpcPort(is_triton=False),
    "http gateway": lambda _: HttpPort(NOT_FOUND, NOT_FOUND),
    "grpc without model": lambda _: GrpcPort(is_triton=True),
    "http without model": lambda _: HttpPort((404, {"error": UNKNOWN_MODEL}), NO_POST),
}


def assert_unreachable(url, protocol, match):
    with Client(url, protocol, timeout_s=TIMEOUT_S) as client, pytest.raises(ServerUnreachableError, match=match):
        client.transcribe(np.zeros(10))


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
        message = f"SERVER_UNREACHABLE: cannot reach a server at {url}: {reason}; {needs}"
        assert_unreachable(url, protocol, f"^{message}$")
    assert recognizer.requests == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_without_the_model_is_one_of_this_protocol(recognizer, protocol):
    with closing(SERVERS[f"{protocol} without model"](recognizer)) as running:
        url = f"127.0.0.1:{running.port}"
        assert_unreachable(url, protocol, f"server at {url}: .*unknown model: 'asr_batch' is not found$")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_connection_that_fails(monkeypatch, closed_socket, protocol):
    def connect(*_, **__):
        raise OSError(113, "No route to host")

    monkeypatch.setattr("penstock_client.batched.server_offer.socket.create_connection", connect)
    url = "localhost:{1}".format(*closed_socket.getsockname())
    assert_unreachable(url, protocol, f"cannot reach a server at {url}: no route to host$")


@pytest.mark.parametrize("protocol", ["grpcs", "https", "grpc", "http"])
def test_nothing_answers(closed_socket, protocol):
    url = "localhost:{1}".format(*closed_socket.getsockname())
    assert_unreachable(url, protocol, f"cannot reach a server at {url}: .*refused$")
