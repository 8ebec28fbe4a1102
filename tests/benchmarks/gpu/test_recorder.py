"""Measurements are kept as they are made; a broken device ends a program, other failures end a case."""

import torch

from benchmarks.gpu import recorder as module
from benchmarks.gpu.recorder import STICKY_STATUS, Recorder, median_ms, run_program
from benchmarks.gpu.tables import read_records
from penstock.errors import DeviceLostError


def test_values_skips_and_failures_are_lines(tmp_path):
    made = Recorder(tmp_path / "x.jsonl", "cpu")

    def fails() -> None:
        made.add("step", {"streams": 1}, 2.0, "ms", 4.0, calls=3)
        raise RuntimeError("out of memory")

    assert not made.attempt("step", {"streams": 2}, fails)
    made.skip("step", {"streams": 3}, "no CUDA device")
    assert made.attempt("step", {}, lambda: None)
    assert read_records(tmp_path / "x.jsonl") == [
        {"name": "step", "case": {"streams": 1}, "value": 2.0, "unit": "ms", "predicted": 4.0, "calls": 3},
        {"name": "step", "case": {"streams": 2}, "error": "RuntimeError: out of memory", "is_sticky": False},
        {"name": "step", "case": {"streams": 3}, "skipped": "no CUDA device"},
    ]


def test_a_broken_device_ends_the_program_with_a_status_of_its_own(tmp_path, monkeypatch):
    def is_lost(device, error):
        raise DeviceLostError(f"{device}: {error}")

    monkeypatch.setattr(module, "check_device_works", is_lost)
    monkeypatch.setattr(module, "prepare_process", lambda threads: None)
    made = []

    def measure(recorder, chosen) -> None:
        recorder.attempt("first", {}, lambda: made.append(torch.zeros(2)[5]))
        made.append("next")

    path = tmp_path / "x.jsonl"
    assert run_program(["--json", str(path), "--device", "cpu"], "", measure) == STICKY_STATUS
    (record,) = read_records(path)
    assert record["is_sticky"] and "out of bounds" in record["error"] and made == []


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    Recorder(path, "cpu").skip("step", {}, "no")
    whole = path.read_text()
    path.write_text(whole + whole[:-9])
    assert len(read_records(path)) == 1


def test_the_calls_that_are_counted(monkeypatch):
    times = iter([9.0, 9.0, 9.0, 1.0, 5.0, 2.0, 4.0, 3.0])
    monkeypatch.setattr(module, "_host_ms", lambda task: next(times))
    assert median_ms(lambda: None, "cpu", 1e-9) == 3.0
    times = iter([9.0, 1.0, 2.0])
    monkeypatch.setattr(module, "_host_ms", lambda task: next(times))
    assert median_ms(lambda: None, "cpu", 0.0) == 1.5
