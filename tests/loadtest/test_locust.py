"""Locust, headless, against a real server: two streams for a few seconds, and its report."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.locust_run import ReadyServer, ServerPlan, fresh_server
from loadtest.options import ROOT

pytestmark = [
    pytest.mark.server,
    # Importing Locust here would change sockets and threads for all tests of this process.
    pytest.mark.skipif(find_spec("locust") is None, reason="needs locust (extra `loadtest`)"),
]

STREAMS, SLOTS = 2, 3
_SEEN_S = 4.0


@pytest.fixture(scope="module")
def server(bundled_model: Path) -> Iterator[ReadyServer]:
    """Three slots."""
    with fresh_server(ServerPlan(bundled_model, "70,6", SLOTS, threads=1)) as running:
        yield running


def run(server: ReadyServer, out: Path, *words: str, protocol: str = "grpc", streams: int = STREAMS) -> dict:
    """A test of a few seconds; returns the report's only window."""
    where = ["--url", server.url(protocol), "--protocol", protocol, "--metrics-url", server.metrics_url]
    where += ["--server-pid", str(server.process_id), "--out", str(out)]
    size = ["--streams", str(streams), "--minutes", "0.12", "--stagger-seconds", "0.5"]
    assert main(["run", *where, *size, *words]) in (0, 1)  # whether it passed depends on what else the machine does
    (window,) = json.loads((out / "loadtest.json").read_text(encoding="utf-8"))["windows"]
    return window


def test_two_streams_over_grpc_from_two_processes(server: ReadyServer, tmp_path, capfd):
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
    assert "## Models" in (tmp_path / "loadtest.md").read_text(encoding="utf-8")
    assert "<title>" in (tmp_path / "locust.html").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_sigterm_to_all_its_processes_ends_a_test_with_its_report(server: ReadyServer, tmp_path):
    command = [sys.executable, "-m", "loadtest", "run", "--url", server.url("grpc"), "--out", str(tmp_path)]
    options = ["--metrics-url", server.metrics_url, "--streams", "1", "--minutes", "2", "--stagger-seconds", "0"]
    with subprocess.Popen([*command, *options], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if b"measuring 1 stream" in line:
                break
        time.sleep(_SEEN_S)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 130
    (window,) = json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8"))["windows"]
    assert 0 < window["seconds"] < 60 and window["requests"] > 0


@pytest.mark.nightly
def test_users_survive_rejections_and_count_them_apart(server: ReadyServer, tmp_path):
    """Over HTTP, more streams than slots: the others are served, the test goes on to its end."""
    window = run(server, tmp_path, protocol="http", streams=SLOTS + 3)
    assert window["rejections"]["count"] > 0
    assert window["errors"]["count"] == 0
    assert window["words"]["utterances"] > 0
    assert (window["passed"], window["bottlenecks"][0]["resource"]) == (False, "slots")


def test_a_mistake_is_named_and_nothing_runs(server: ReadyServer, tmp_path, capfd):
    where = ["--url", server.url("grpc"), "--out", str(tmp_path)]
    assert main(["run", *where, "--streams", "2,3"]) == 2
    assert "--streams is 2,3: too many numbers for --shape constant" in capfd.readouterr().err
    assert main(["run", *where, "--recordings", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: No such file" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_live_windows_of_an_offline_model(bundled_model: Path, tmp_path):
    with fresh_server(ServerPlan(bundled_model.parent / "an4-offline", None, 4 * STREAMS, threads=1)) as server:
        assert "context" not in server.facts
        live = ["--window", "10,0.4,0.24", "--no-align", "--chunk-ms", "400", "--decoder", "ctc"]
        window = run(server, tmp_path, *live)
    assert window["errors"]["count"] == window["rejections"]["count"] == 0
    assert window["chunk_ms"] == pytest.approx(400.0)
    assert window["chunks"] > 5 and window["finals"] > 0 and window["words"]["utterances"] > 0
