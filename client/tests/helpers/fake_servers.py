"""`FakeBatch` on real sockets: Triton's gRPC and HTTP endpoints, and a wire that can be cut."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from client.tests.helpers.certificates import Certificates
from client.tests.helpers.fake_batch import FakeBatch, read_body, read_request
from client.tests.helpers.fake_speakers import MODEL, FakeSpeakers
from client.tests.helpers.fakes import FakeRecognizer, ReceivedRequest, RejectionError

THREADS_NAME = "fake server"
"""The prefix of the names of a server's threads."""
_HEADER_LENGTH = "Inference-Header-Content-Length"


class GrpcServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """ModelStreamInfer as Triton serves it: errors in the stream, replies in the order of the requests.

    `on_request` sees each request to `asr_batch` before it is answered, in its call's thread. With `certificates` it
    uses mutual TLS.
    """

    def __init__(self, recognizer: FakeRecognizer, certificates: Certificates | None = None):
        self.recognizer, self.speakers = recognizer, FakeSpeakers()
        self.batch = FakeBatch(recognizer, self.speakers)
        self.on_request: Callable[[], object] = lambda: None
        self.live_calls = 0
        self.headers: dict[str, str] = {}
        """Headers of the last call."""
        self._server = grpc.server(ThreadPoolExecutor(16, THREADS_NAME))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        if certificates:
            own = [(certificates.server_key.read_bytes(), certificates.server.read_bytes())]
            credentials = grpc.ssl_server_credentials(own, certificates.client.read_bytes(), True)
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        else:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def ModelStreamInfer(self, request_iterator, context):  # noqa: N802
        self.live_calls += 1
        self.headers = dict(context.invocation_metadata())
        context.add_callback(self._end_call)
        for request in request_iterator:
            try:
                assert request.model_name in ("asr_batch", MODEL)
                self.on_request()
                model = [MODEL] if request.model_name == MODEL else []
                outputs = self.batch.answer(*read_request(request), *model)
            except RejectionError as error:
                yield service_pb2.ModelStreamInferResponse(error_message=str(error))
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=grpc_response(outputs))

    def ModelConfig(self, request, context):  # noqa: N802
        if request.name not in ("asr", "asr_batch"):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: {request.name!r} is not found")
        response = service_pb2.ModelConfigResponse()
        for name, value in (self.batch.recognizer.server_parameters | self.speakers.parameters).items():
            response.config.parameters[name].string_value = value
        return response

    def close(self) -> None:
        self._server.stop(None).wait()

    def _end_call(self) -> None:
        self.live_calls -= 1


def grpc_response(outputs: dict[str, np.ndarray]):
    response = service_pb2.ModelInferResponse()
    for name, values in outputs.items():
        response.outputs.add(name=name, datatype=np_to_triton_dtype(values.dtype), shape=values.shape)
        response.raw_output_contents.append(_raw(values))
    return response


def _raw(values: np.ndarray) -> bytes:
    if values.dtype != np.object_:
        return values.tobytes()
    return serialize_byte_tensor(values).item() if values.size else b""


class HttpServer:
    """POST v2/models/asr_batch/infer with binary tensors. With `certificates` it uses mutual TLS."""

    def __init__(self, recognizer: FakeRecognizer, certificates: Certificates | None = None):
        self.recognizer = recognizer
        self.speakers = FakeSpeakers()
        self.statuses: list[int] = []
        """Statuses of the next POSTs, which a proxy answers in the server's place."""
        members = {"batch": FakeBatch(recognizer, self.speakers), "latest_headers": {}}
        members["statuses"] = self.statuses
        self._handler = type("Handler", (_Handler,), members)
        self._server = _QuietHttpServer(("127.0.0.1", 0), self._handler)
        if certificates:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.client)
            context.load_cert_chain(certificates.server, certificates.server_key)
            context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last request."""
        return self._handler.latest_headers

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _QuietHttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_) -> None:
        """A client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    batch: FakeBatch
    statuses: list[int]
    latest_headers: dict[str, str]

    def do_GET(self) -> None:
        if self.path in ("/v2/models/asr/config", "/v2/models/asr_batch/config"):
            offered = self.batch.recognizer.server_parameters | self.batch.speakers.parameters
            values = {name: {"string_value": value} for name, value in offered.items()}
            self._reply(200, json.dumps({"name": "asr", "parameters": values}).encode(), None)
            return
        self._reply(200 if self.path == "/v2/health/live" else 404, b"", None)

    def do_POST(self) -> None:
        model = self.path.split("/")[3]
        assert self.path == f"/v2/models/{model}/infer" and model in ("asr_batch", MODEL)
        type(self).latest_headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.statuses:
            self._reply(self.statuses.pop(0), b"<html></html>", None)
            return
        try:
            header_length = int(self.headers[_HEADER_LENGTH])
            outputs = self.batch.answer(*read_body(body, header_length), model)
        except RejectionError as error:
            self._reply(error.status, json.dumps({"error": str(error)}).encode(), None)
        else:
            self._reply(200, *_http_body(outputs))

    def _reply(self, status: int, body: bytes, header_length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if header_length is not None:
            self.send_header(_HEADER_LENGTH, str(header_length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


def _http_body(outputs: dict[str, np.ndarray]) -> tuple[bytes, int]:
    raw = {name: _raw(values) for name, values in outputs.items()}
    tensors = [
        {
            "name": name,
            "datatype": np_to_triton_dtype(values.dtype),
            "shape": list(values.shape),
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, values in outputs.items()
    ]
    header = json.dumps({"model_name": "asr", "outputs": tensors}).encode()
    return header + b"".join(raw.values()), len(header)


def eventually(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Waits until the condition is met, and fails after the time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Wire:
    """A TCP relay to a local port. `cut` drops its connections as a dead server would.

    It listens on `own_port`, or on the socket `bound`, which it closes.
    """

    def __init__(self, port: int, own_port: int = 0, bound: socket.socket | None = None):
        self._target = ("127.0.0.1", port)
        self._listener = bound or socket.create_server(("127.0.0.1", own_port))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends the current connections; new ones are still accepted."""
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets = []

    def lead_to(self, port: int) -> None:
        """Ends the current connections; new ones lead to another server."""
        self._target = ("127.0.0.1", port)
        self.cut()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()


DRAINING = "in ensemble 'asr', SERVER_DRAINING: stream 's' rejected: the server is stopping"
UNLOADED = "Request for unknown model: 'asr' has no available versions"


class Restart:
    """From request `at` on a server drains, rejects what comes with these messages, ends, and starts again.

    It starts at the same address as another server, which knows no streams. `when` holds the drain back.
    """

    def __init__(self, server, wire: Wire, at: int = 1, messages=(DRAINING, UNLOADED), when=lambda: True):
        self.recognizer = FakeRecognizer()
        self._second = type(server)(self.recognizer)
        self._first, self._wires = server.recognizer, [wire]
        self._at, self._messages, self._when = at, list(messages), when
        self._first.before_answer = self._answer

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self._second.close()

    def _answer(self, request: ReceivedRequest) -> None:
        if len(self._first.requests) < self._at or (request.is_end and not request.is_start):
            return
        eventually(self._when)
        if self._messages:
            message = self._messages.pop(0)
            raise RejectionError(message, 503 if message == DRAINING else 400)
        self._wires[0].close()
        threading.Timer(0.5, self._start).start()
        raise RejectionError("not received")

    def _start(self) -> None:
        self._wires.append(Wire(self._second.port, self._wires[0].port))


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
