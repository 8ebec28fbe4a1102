"""The start of a server whose processes live but say nothing, as where a machine is short of memory."""

from pathlib import Path

import pytest

from penstock.errors import ServerCrashError, ServerError
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.ports import Ports
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
