"""The programs of benchmarks/gpu without a GPU, with small sizes: every case is measured or skipped with a reason."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu import decoders, encoder, machine, recorder, system
from benchmarks.gpu.tables import read_records


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program's command line; returns its records."""
    monkeypatch.setattr(recorder, "prepare_process", lambda threads: None)  # of the tests' process

    def run(program, *options: str) -> list[dict]:
        path: Path = tmp_path / "x.jsonl"
        assert program.main(["--json", str(path), "--device", "cpu", "--tiny", *options]) == 0
        records = read_records(path)
        assert not [record for record in records if "error" in record]
        assert {record["skipped"] for record in records if "skipped" in record} <= {
            "no CUDA device", "cpu is not a CUDA device", "kernels run on CUDA devices, not on cpu"
        }  # fmt: skip
        return records

    return run


def values(records: list[dict], name: str) -> list[float]:
    found = [record["value"] for record in records if record["name"] == name and "value" in record]
    assert all(value > 0 for value in found)
    return found


def test_the_machine(run):
    records = run(machine)
    assert len(values(records, "copy")) == 1 and len(values(records, "matrix product")) == 3


@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.nightly), "bf16"])
def test_the_encoder(run, dtype):
    records = run(encoder, "--dtype", dtype)
    assert len(values(records, "encoder step")) == 4 and len(values(records, "encoder profile")) == 4
    assert Counter(r["case"]["launch"] for r in records if "skipped" in r) == {"captured": 4}
    kernels = next(record["kernels"] for record in records if "kernels" in record)
    assert any("mm" in row["kernel"] for row in kernels) and all(row["ms"] > 0 for row in kernels)
    errors = values(records, "encoder error")
    assert len(errors) == (dtype != "fp32") and all(1e-4 < error < 0.1 for error in errors)


@pytest.mark.parametrize(("kind", "right"), [("rnnt", "0"), ("tdt", "3")])
def test_the_decoders(run, kind, right):
    records = run(decoders, "--kind", kind, "--right", right)
    chunks = [record["case"] for record in records if record["name"] == "decoder chunk"]
    assert Counter((case["decoder"], case["streams"]) for case in chunks) == {
        (decoder, streams): 1 for decoder in decoders.DECODERS for streams in (1, 2)
    }
    counts = values(records, "operations of a chunk")
    assert len(counts) == 3 and min(counts) > 10
    assert len(values(records, "decoder set-up")) == 3


def test_streams_in_real_time(run):
    records = run(system, "--right", "13")
    trials = [record for record in records if record["name"] == "real time"]
    assert len(trials) == 3 and trials[-1]["streams"] in {trial["streams"] for trial in trials[:-1]}
    for trial in trials:
        assert trial["chunks"] == trial["streams"] and trial["host_us_per_chunk"] > 0
        assert trial["keeps_up"] == (trial["late"] == 0)
    (last,) = [record for record in records if record["name"] == "streams that keep up"]
    assert last["value"] == (last["streams"] if trials[-1]["keeps_up"] else 0)


def test_what_is_behind_is_sent_a_chunk_per_call(monkeypatch):
    """A stream never occurs twice in a batch, and every chunk is processed."""
    batches: list[list[str]] = []

    class Recognizer:
        sample_rate_hz = 16_000

        class config:  # noqa: N801
            encoder_frame_samples = 1280

        class context:  # noqa: N801
            chunk_encoder_frames = 1

        def process(self, requests):
            names = [request.stream_id for request in requests]
            assert len(set(names)) == len(names)
            batches.append(names)
            return [None] * len(names)

    clock = iter(range(10**9))
    monkeypatch.setattr(system.time, "perf_counter", lambda: 0.05 * next(clock))  # each call takes longer than 80 ms
    monkeypatch.setattr(system.time, "sleep", lambda seconds: None)
    trial = system.run_trial(Recognizer(), 3, 0.8, "cpu")
    assert trial.chunks == 30 and sum(map(len, batches[1:-1])) == 30
    assert trial.late > 0 and not trial.keeps_up
