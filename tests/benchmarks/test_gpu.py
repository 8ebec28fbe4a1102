"""The GPU benchmarks and their runner with small sizes on the CPU; their times mean nothing here."""

import json
import sys

import pytest

from benchmarks import gpu
from scripts import gpu_run

SERVER = pytest.param("server", 1, marks=pytest.mark.server)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "lines"), [("encoder", 2), ("searches", 22), SERVER])
def test_a_benchmark(tmp_path, monkeypatch, name, lines):
    monkeypatch.setattr(gpu, "prepare_process", lambda threads: None)  # of the tests' process
    path = tmp_path / "x.jsonl"
    gpu.main([name, "--json", str(path), "--device", "cpu", "--tiny"])
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == lines and not any("error" in record for record in records)


def test_the_runner_ends_what_takes_too_long(tmp_path):
    assert gpu_run.run(["-c", "print('done')"], tmp_path / "log", 60.0) == (0, "done\n")
    assert gpu_run.run(["-c", "import time; time.sleep(600)"], tmp_path / "log", 1.0) == (None, "")


def test_the_runner_finds_the_tests_and_reports_a_failure(tmp_path, monkeypatch):
    assert {"tests/kernels/test_joint.py", "tests/gpu/test_cuda_graphs.py"} <= set(gpu_run.test_files())
    monkeypatch.setattr(gpu_run, "run", lambda command, log, limit_s: (int("encoder" in command), "2 passed"))
    monkeypatch.setattr(sys, "argv", ["gpu_run", "--out", str(tmp_path), "--device", "cpu", "--tiny"])
    assert gpu_run.main() == 1
    records = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [record["name"] for record in records] == ["versions", "tests", "benchmark"]
