"""Locust, headless, against a real server: two streams for a few seconds, and its report."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.locust_run import ServerPlan, Target, fresh_server
from loadtest.options import ROOT

pytestmark = [
    pytest.mark.server,
    pytest.mark.usefixtures("uncompiled"),
    # Importing Locust here would change sockets and threads for all tests of this process.
    pytest.mark.skipif(find_spec("locust") is None, reason="needs locust (extra `loadtest`)"),
]

STREAMS, SLOTS = 2, 3


@pytest.fixture(scope="module")
def server(bundled_model: Path) -> Iterator[Target]:
    """Three slots."""
    with fresh_server(ServerPlan(bundled_model, "70,6", SLOTS, threads=1)) as running:
        yield running


def run(server: Target, out: Path, *words: str) -> dict:
    """A test of a few seconds; returns the report's only window."""
    where = ["--url", server.url, "--metrics-url", server.metrics_url]
    where += ["--server-pid", str(server.process_id), "--out", str(out / "new")]
    size = ["--streams", str(STREAMS), "--minutes", "0.12", "--stagger-seconds", "0.5"]
    assert main(["run", *where, *size, *words]) in (0, 1)  # whether it passed depends on what else the machine does
    report = json.loads((out / "new" / "loadtest.json").read_text(encoding="utf-8"))
    assert {"date", "hardware", "commit", "packages", "load_average", "command"} <= set(report["circumstances"])
    assert report["options"]["streams"] == str(STREAMS)
    (window,) = report["windows"]
    return window


def test_locust_listens_on_loopback():
    code = "import loadtest.locustfile; from locust.argument_parser import get_parser; "
    code += "options = get_parser().parse_args([]); print(options.web_host, options.master_bind_host)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "127.0.0.1 127.0.0.1\n", done.stderr


def test_two_streams_over_grpc_from_two_processes(server: Target, tmp_path, capfd):
    window = run(server, tmp_path, "--processes", "2")
    output = capfd.readouterr()
    said = output.err.splitlines()
    assert [line for line in said if line.endswith("measuring 2 streams")] and said[-1].startswith("wrote ")
    assert "locust" not in (output.out + output.err).replace("locust.html", "").lower()
    assert window["streams"] == STREAMS
    assert window["attempted_streams"] > 0
    assert window["seconds"] > 7.1
    assert window["chunk_ms"] == pytest.approx(560.0)  # inferred from the answers
    assert window["errors"]["count"] == window["rejections"]["count"] == 0
    assert window["requests"] > 15 and window["chunks"] > 5 and window["finals"] > 0
    assert window["words"]["utterances"] > 0
    assert window["words"]["recordings_with_several_texts"] == 0
    for name in ("features", "encoder", "decoder"):
        assert window["models"][name]["requests"] > 15
        assert window["machine"]["processes"][name]["pss_mib"] > 1
    assert {"tritonserver", "load generator"} <= set(window["machine"]["processes"])
    assert window["generator"]["text"]
    assert "## Models" in (tmp_path / "new" / "loadtest.md").read_text(encoding="utf-8")
    assert "<title>" in (tmp_path / "new" / "locust.html").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_live_windows_of_an_offline_model(bundled_model: Path, tmp_path):
    with fresh_server(ServerPlan(bundled_model.parent / "an4-offline", None, 4 * STREAMS, threads=1)) as server:
        assert "context" not in server.facts
        live = ["--window", "10,0.4,0.24", "--no-align", "--chunk-ms", "400", "--decoder", "ctc"]
        window = run(server, tmp_path, *live)
    assert window["errors"]["count"] == window["rejections"]["count"] == 0
    assert window["chunk_ms"] == pytest.approx(400.0)
    assert window["chunks"] > 5 and window["finals"] > 0 and window["words"]["utterances"] > 0
