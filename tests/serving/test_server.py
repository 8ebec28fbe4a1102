"""The start of a server whose processes live but say nothing, as where a machine is short of memory."""

from pathlib import Path

import pytest

from penstock.errors import ServerError
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.ports import Ports
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import TritonInstall


@pytest.fixture
def silent_server(tmp_path: Path) -> TritonServer:
    executable = tmp_path / "tritonserver"
    executable.write_text("#!/bin/sh\nexec sleep 600\n")
    executable.chmod(0o755)
    options = ServerOptions(find_model_repository(None), Ports(), LOOPBACK, 8, {}, {}, False)
    return TritonServer(TritonInstall(executable), options)


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
