"""The GPU benchmarks and their runner with small sizes on the CPU; their times mean nothing here."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from scripts import gpu_run

SERVER = pytest.param("server", 1, marks=[pytest.mark.server, pytest.mark.nightly])


@pytest.mark.parametrize(("name", "lines"), [("encoder", 6), ("searches", 22), ("streams", 1), SERVER])
def test_a_benchmark(tmp_path, monkeypatch, name, lines):
    monkeypatch.setattr(gpu, "prepare_process", lambda threads: None)  # of the tests' process
    monkeypatch.setattr(gpu, "freeze_loaded", lambda: None)
    path = tmp_path / "x.jsonl"
    assert gpu.main([name, "--json", str(path), "--device", "cpu", "--tiny"]) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == lines and not any("error" in record for record in records)


def test_a_late_call_has_one_chunk_of_each_stream(monkeypatch):
    batches: list[list[str]] = []

    def process(requests) -> list[SimpleNamespace]:
        batches.append([request.stream_id for request in requests])
        return [SimpleNamespace(tokens=["a"])] * len(requests)

    clock = iter(range(10**9))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: 0.05 * next(clock))  # each call takes longer than 80 ms
    monkeypatch.setattr(gpu.time, "sleep", lambda seconds: None)
    recognizer = SimpleNamespace(sample_rate_hz=16_000, process=process, chunk_samples=lambda: 1280)
    values = gpu.run_trial(recognizer, 3, 0.8)
    assert values["chunks"] == sum(map(len, batches[1:-1])) == 30 and values["late"] > 0
    assert values["labels"] == sum(map(len, batches))
    assert all(len(set(names)) == len(names) for names in batches)


def test_the_runner_ends_what_takes_too_long(tmp_path):
    assert gpu_run.run(["-c", "print('done')"], tmp_path / "log", 60.0) == (0, "done\n")
    assert gpu_run.run(["-c", "import time; time.sleep(600)"], tmp_path / "log", 1.0) == (None, "")


def test_the_runner_finds_the_tests_and_reports_a_failure(tmp_path, monkeypatch):
    assert {"tests/kernels/test_joint.py", "tests/gpu/test_cuda_graphs.py"} <= set(gpu_run.test_files())
    monkeypatch.setattr(gpu_run, "run", lambda command, log, limit_s: (int("streams" in command), "2 passed"))
    monkeypatch.setattr(sys, "argv", ["gpu_run", "--out", str(tmp_path), "--device", "cpu", "--tiny"])
    assert gpu_run.main() == 1
    records = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [record["name"] for record in records] == ["versions", "tests", "benchmark"]
