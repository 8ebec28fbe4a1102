"""The start of a server whose processes live but say nothing, as where a machine is short of memory."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.errors import PortError, ServerCrashError, ServerError
from penstock.serving import server as server_module
from penstock.serving.launch import LOOPBACK, Ports, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import TritonInstall


def server_of(script: str, folder: Path) -> TritonServer:
    executable = folder / "tritonserver"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    options = ServerOptions(find_model_repository(None), Ports(), LOOPBACK, 8, {}, {}, False)
    return TritonServer(TritonInstall(executable), options)


@pytest.fixture
def silent_server(tmp_path: Path) -> TritonServer:
    return server_of("exec sleep 600", tmp_path)


def test_a_start_without_an_end_fails_at_its_limit_and_leaves_no_process(silent_server):
    waits = []
    silent_server.start()
    try:
        with pytest.raises(ServerError, match=r"the server is not ready after 0\.2 s: its log is empty"):
            silent_server.wait_ready(0.2, on_wait=lambda: waits.append(1))
    finally:
        silent_server.stop(drain=False)
    assert waits, "progress is reported meanwhile"
    assert silent_server.has_ended()


@pytest.mark.parametrize(
    ("end", "error", "starts"), [("kill -ABRT $$", ServerCrashError, 3), ("exit 1", ServerError, 1)]
)
def test_a_start_is_repeated_after_a_crash_only(end, error, starts, tmp_path):
    server = server_of(f"echo start >> {tmp_path}/starts\necho out of luck\n{end}", tmp_path)
    with pytest.raises(error, match="the server did not start: out of luck"), server:
        pytest.fail("it is not ready")
    assert (tmp_path / "starts").read_text() == "start\n" * starts
    assert server.has_ended()


class Answer(BaseHTTPRequestHandler):
    """OK to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def answering(port: int) -> Iterator[None]:
    with ThreadingHTTPServer((LOOPBACK, port), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_a_server_is_not_ready_by_what_another_process_answers_on_its_ports(silent_server):
    silent_server.start()
    try:
        with answering(silent_server.ports.http), answering(silent_server.ports.metrics), pytest.raises(ServerError):
            silent_server.wait_ready(0.2)
    finally:
        silent_server.stop(drain=False)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_port_that_another_process_has_taken_is_named_or_replaced(tmp_path, monkeypatch, is_fixed):
    """Taken after the check: the first start fails, the second one has other ports."""
    server = server_of(f"echo start >> {tmp_path}/starts\necho out of luck\nexit 1", tmp_path)
    check, taken = server_module.claim_ports, []

    def claim(ports, address):
        found = check(ports, address)
        if not taken:
            taken.append(stack.enter_context(socket.create_server((address, found.metrics))))
        return found

    with contextlib.ExitStack() as stack:
        if is_fixed:
            server._options = dataclasses.replace(server._options, ports=check(Ports(), LOOPBACK))
            server.ports = server._options.ports
        monkeypatch.setattr(server_module, "claim_ports", claim)
        error = PortError if is_fixed else ServerError
        message = "metrics port .* is in use" if is_fixed else "the server did not start: out of luck"
        with pytest.raises(error, match=message), server:
            pytest.fail("it is not ready")
        assert server.ports.metrics != taken[0].getsockname()[1] or is_fixed
    assert (tmp_path / "starts").read_text() == "start\n" * (1 if is_fixed else 2)
