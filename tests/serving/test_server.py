"""The start of a server whose processes live but say nothing, as where a machine is short of memory."""

import contextlib
import ctypes
import dataclasses
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from penstock.errors import PortError, ServerCrashError, ServerError
from penstock.pipeline.slots.drain import DrainBoard, Phase
from penstock.serving import runtime_directory
from penstock.serving import server as server_module
from penstock.serving.launch import LOOPBACK, Ports, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.runtime_directory import RuntimeDirectory
from penstock.serving.server import TritonServer
from penstock.serving.settings import DRAIN_BOARD
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
    note_id = f"grep -h penstock_server_id ${{2#*=}}/asr/config.pbtxt >> {tmp_path}/starts"
    server = server_of(f"{note_id}\necho out of luck\n{end}", tmp_path)
    with pytest.raises(error, match="the server did not start: out of luck"), server:
        pytest.fail("it is not ready")
    assert len({*(tmp_path / "starts").read_text().splitlines()}) == starts, "each with an id of its own"
    assert server.has_ended()


def test_process_1_of_a_container_leaves_no_zombie_and_no_other_process_without_its_status(tmp_path):
    """With the same inheritance in any process."""
    set_child_subreaper, model, other = 36, tmp_path / "model", subprocess.Popen("false")
    server = server_of(f"sleep 600 & echo $! > {model}.new; mv {model}.new {model}; exec sleep 600", tmp_path)
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)
    try:
        server.start()
        while not model.exists():
            time.sleep(0.01)
        server.stop(drain=False)
        assert not psutil.pid_exists(int(model.read_text()))
        assert other.wait() == 1
    finally:
        ctypes.CDLL(None).prctl(set_child_subreaper, 0)


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (runtime_directory.tempfile, "mkdtemp", OSError(30, "Read-only file system")),
        (runtime_directory.fcntl, "flock", OSError(37, "No locks available")),
        (server_module, "copy_models", OSError(28, "No space left on device")),
        (RuntimeDirectory, "start_guard", OSError(24, "Too many open files")),
        (server_module, "ServerLog", RuntimeError("can't start new thread")),
    ],
)
def test_a_start_without_memory_or_descriptors_has_a_code_and_leaves_nothing(
    silent_server, tmp_path, monkeypatch, owner, name, error
):
    monkeypatch.setattr(runtime_directory, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(owner, name, Mock(side_effect=error))
    with pytest.raises(ServerError, match=f"cannot be started: .*{error.args[-1]}"):
        silent_server.start()
    assert not list(tmp_path.glob("*penstock*"))
    assert "sleep" not in [child.name() for child in psutil.Process().children()]


def test_a_directory_that_is_removed_during_the_start_ends_it(silent_server, monkeypatch):
    monkeypatch.setattr(silent_server, "_is_ready", lambda: True)
    monkeypatch.setattr(server_module, "_listening", lambda _: None)
    silent_server.start()
    shutil.rmtree(silent_server._running.runtime.path)
    with pytest.raises(ServerError, match="was removed meanwhile"):
        silent_server.wait_ready()
    silent_server.stop(drain=False)


def test_a_directory_that_is_removed_later_is_reported_and_disturbs_no_drain(silent_server, monkeypatch):
    monkeypatch.setattr(silent_server, "_is_ready", lambda: True)
    monkeypatch.setattr(server_module, "_listening", lambda _: None)
    silent_server.start()
    runtime = silent_server._running.runtime.path
    board = DrainBoard(2, runtime / DRAIN_BOARD)
    board.times_ns[0] = time.monotonic_ns()
    silent_server.wait_ready()
    shutil.rmtree(runtime)
    (warning,) = [*silent_server.check_files(), *silent_server.check_files()]
    assert str(runtime) in warning

    def end_the_stream(streams: int) -> None:
        assert (streams, board.phase) == (1, Phase.DRAINING)
        board.times_ns[0] = 0

    assert silent_server.stop(on_wait=end_the_stream) == (1, 0)


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


LISTENS = """exec python3 -c '
import os, socket, sys, time
opened = [socket.create_server(("127.0.0.1", int(a[12:]))) for a in sys.argv if a.startswith("--grpc-port=")]
print("failed to start HTTP service: Socket already in use", flush=True)
while not os.path.exists(os.environ["PENSTOCK_RUNTIME_DIR"] + "/seen"):
    time.sleep(0.01)
opened.clear()
time.sleep(600)' "$@" """


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_port_that_is_closed_again_ends_the_start(tmp_path, is_taken):
    """Triton cannot end while a client holds a call; the other port may be free again."""
    server = server_of(LISTENS, tmp_path)
    server.start()

    looks = []

    def note_open() -> None:
        looks.append(server_module._listening(server.process_id))
        if len(looks) > 1 and looks[-2]:
            (server.running.runtime.path / "seen").touch()

    with contextlib.ExitStack() as stack:
        if is_taken:
            stack.enter_context(socket.create_server((LOOPBACK, server.ports.http)))
        stack.callback(server.stop, drain=False)
        message = f"http port {server.ports.http} is in use" if is_taken else "start HTTP service: Socket already in"
        with pytest.raises(PortError, match=message):
            server.wait_ready(60, on_wait=note_open)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_port_that_another_process_has_taken_is_named_or_replaced(tmp_path, monkeypatch, is_fixed):
    """Taken after the check: the first start fails, the second one has other ports."""
    server = server_of(f"echo start >> {tmp_path}/starts\necho out of luck\nexit 1", tmp_path)
    check, taken = server_module.claim_ports, []

    def claim(ports, address):
        found, _ = check(ports, address)
        if not taken:
            taken.append(stack.enter_context(socket.create_server((address, found.metrics))))
        return found, []

    with contextlib.ExitStack() as stack:
        if is_fixed:
            server._options = dataclasses.replace(server._options, ports=check(Ports(), LOOPBACK)[0])
            server.ports = server._options.ports
        monkeypatch.setattr(server_module, "claim_ports", claim)
        error = PortError if is_fixed else ServerError
        message = "metrics port .* is in use" if is_fixed else "the server did not start: out of luck"
        with pytest.raises(error, match=message), server:
            pytest.fail("it is not ready")
        assert server.ports.metrics != taken[0].getsockname()[1] or is_fixed
    assert (tmp_path / "starts").read_text() == "start\n" * (1 if is_fixed else 2)
