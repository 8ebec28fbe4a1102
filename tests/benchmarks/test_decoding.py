"""`python -m benchmarks.decoding`: the JSON, the table, the exit status, and what is rejected by name."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks import decoding as benchmark
from benchmarks import measure
from benchmarks.random_models import TRANSDUCERS, TransducerSizes
from benchmarks.systems import Unavailable, Variant
from penstock.errors import PenstockError
from penstock.graphs.select import missing_for_while_nodes
from penstock.kernels.capability import why_unavailable
from tests.helpers.golden import AN4

VARIANT_FIELDS = ("implementation", "decoder", "driver", "beam", "projections", "span", "kernels")
VARIANTS = {
    ("label-looping", None, "precomputed"), ("label-looping", None, "each time"),
    ("frame-looping", None, "precomputed"), ("frame-looping", None, "each time"),
    ("alsd", 1, "precomputed"), ("alsd", 2, "precomputed"), ("aes", 1, "precomputed"), ("aes", 2, "precomputed"),
}  # fmt: skip
TINY = ("--size", "tiny", "--batch", "1,2", "--beams", "1,2", "--seconds", "0.96", "--repeats", "1")


@pytest.fixture(autouse=True)
def small_and_alone(monkeypatch):
    """The command may set threads and the allocator of its own process, not those of the tests."""
    monkeypatch.setattr("penstock.runtime.prepare_process", lambda threads: None)
    monkeypatch.setitem(TRANSDUCERS, "tiny", TransducerSizes(8, 16, 12))


def run(*arguments: object) -> int:
    return benchmark.run(benchmark.build_parser().parse_args([*map(str, arguments)]))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def check_results(workload: dict, batches: list[int]) -> None:
    """Every line for every batch, labels alike, figures positive and consistent."""
    results = workload["results"]
    rows = [(r["decoder"], r["beam"], r["projections"], r["batch"]) for r in results]
    assert len(set(rows)) == len(rows)
    assert set(rows) == {(*row, batch) for row in VARIANTS for batch in batches}
    for result in results:
        assert tuple(result)[: len(VARIANT_FIELDS)] == VARIANT_FIELDS
        assert (result["implementation"], result["driver"], result["span"]) == ("penstock", "no_graphs", "chunks")
        assert result["kernels"] == "torch"
        seconds, audio_s = result["decoder_s"], result["audio_s"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] < math.inf
        assert (seconds["min"], seconds["max"]) == (min(result["rounds_s"]), max(result["rounds_s"]))
        assert result["decoder_to_label_looping"] > 0
        assert audio_s == pytest.approx(result["batch"] * workload["stream_s"])
        assert result["non_encoder_rtfx"] == pytest.approx(audio_s / seconds["median"])
        assert result["decoder_s_per_audio_s"] == pytest.approx(seconds["median"] / audio_s)
        if workload["has_encoder"]:
            both = seconds["median"] + result["encoder_s"]["median"]
            assert result["total_rtfx"] == pytest.approx(audio_s / both)
            assert result["decoder_share"] == pytest.approx(seconds["median"] / both)
            assert result["total_to_label_looping"] > 0
        else:
            assert result["encoder_s"] is result["total_rtfx"] is result["decoder_share"] is None
            assert workload["encoder"] is result["total_to_label_looping"] is None
        if result["beam"] is None:
            assert result["streams_as_label_looping"] == 1.0
    for batch in batches:
        greedy = {r["labels"] for r in results if r["batch"] == batch and r["beam"] is None}
        assert len(greedy) == 1 and greedy.pop() > 0


def test_random_weights_of_both_kinds(tmp_path, capsys):
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--context", "8,3", "--json", path) == 0
    report = read(path)
    assert (report["format"], report["version"], report["device"], report["threads"]) == (
        "penstock-decoding-benchmark", 2, "cpu", 1,
    )  # fmt: skip
    assert all(report[name] for name in ("penstock", "date", "hardware", "command", "python"))
    assert torch.__version__.startswith(report["packages"]["torch"].partition("+")[0])
    assert "commit" in report and report["load_average_before"] >= 0
    assert report["plan"]["batches"] == [1, 2] and report["plan"]["repeats"] == 1
    assert [workload["kind"] for workload in report["workloads"]] == ["rnnt", "tdt"]
    for workload in report["workloads"]:
        assert (workload["stream_encoder_frames"], workload["chunk_encoder_frames"], workload["context"]) == (
            12,
            4,
            [8, 3],
        )
        assert workload["transducer"]["vocabulary_size"] == 12
        assert (workload["has_encoder"], workload["unavailable"]) == (False, [])
        check_results(workload, [1, 2])
    out = capsys.readouterr().out
    assert "no encoder" in out and "Total RTFx" not in out
    lines = [line for line in out.splitlines() if line.startswith("| penstock alsd, K=2 ")]
    assert len(lines) == 8, "time, RTFx, ratio and labels of both kinds"


def test_a_model_with_its_encoder(bundled_model, tmp_path, capsys):
    path, audio = tmp_path / "decoding.json", sorted(AN4.rglob("*.flac"))[:2]
    options = ("--batch", "2,1", "--beams", "1,2", "--seconds", 1.2, "--repeats", 1, "--context", "70,6")
    chosen = ("--model", bundled_model, "--audio", audio[0], "--audio", audio[1])
    assert run(*chosen, *options, "--json", path) == 0
    (workload,) = read(path)["workloads"]
    assert (workload["context"], workload["stream_s"], workload["has_encoder"]) == ([70, 6], 1.2, True)
    check_results(workload, [2, 1])
    out = capsys.readouterr().out
    assert "Total RTFx" in out and "Share of the time" in out and str(audio[1]) in out
    assert workload["encoder"]["d_model"] == 144 and "to that with Penstock's label-looping" in out


def test_unavailable_kernels_are_named(tmp_path, capsys):
    path = tmp_path / "decoding.json"
    chosen = ("--random", "rnnt", "--decoders", "label-looping", "--kernels", "fused,torch")
    assert run(*TINY, *chosen, "--json", path) == 0
    report = read(path)
    (workload,) = report["workloads"]
    assert report["plan"]["kernels"] == ["fused", "torch"]
    (unavailable,) = workload["unavailable"]
    assert (unavailable["kernels"], unavailable["reason"]) == ("fused", "kernels run on CUDA devices, not on cpu")
    assert "- penstock label-looping, fused: kernels run on" in capsys.readouterr().out


def test_a_failing_decoder_is_named_and_makes_the_status_1(tmp_path, monkeypatch, capsys):
    unavailable = Unavailable(
        Variant("penstock", "aes", "no_graphs", 2), "failed at batch 1: RuntimeError: lost", is_failure=True
    )
    real = measure.set_up

    def with_unavailable(workload, plan):
        systems = real(workload, plan)
        systems.unavailable.append(unavailable)
        return systems

    monkeypatch.setattr(measure, "set_up", with_unavailable)
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--random", "rnnt", "--decoders", "label-looping", "--json", path) == 1
    (unavailable,) = read(path)["workloads"][0]["unavailable"]
    assert (unavailable["decoder"], unavailable["beam"], unavailable["is_failure"]) == ("aes", 2, True)
    assert "- penstock aes, K=2: failed at batch 1: RuntimeError: lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch is 0, expected 1 .. 4096"),
        (["--batch", "1,x"], "--batch is '1,x', expected integers"),
        (["--batch", ""], "--batch is ''"),
        (["--beams", "33"], "--beams is 33, expected 1 .. 32"),
        (["--beams", "4,0"], "--beams is 0"),
        (["--seconds", "0"], "--seconds is 0, expected above 0, at most 3600"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--seconds", "inf"], "--seconds is inf"),
        (["--repeats", "0"], "--repeats is 0, expected 1 .. 10000"),
        (["--threads", "0"], "--threads is 0"),
        (["--decoders", "all,alsd"], "--decoders: 'all' is not supported"),
        (["--decoders", "viterbi"], "--decoders: 'viterbi' is not supported; supported: label-looping, frame-looping,"),
        (["--random", "ctc"], "--random: 'ctc' is not supported; supported: rnnt, tdt"),
        (["--size", "huge"], "--size: 'huge' is not supported; supported: small, large"),
        (["--encoder", "huge"], "--encoder: 'huge' is not supported; supported: none, small, large, xlarge"),
        (["--model", "m", "--encoder", "small"], "--encoder goes with --random"),
        (["--kernels", "auto"], "--kernels: 'auto' is not supported; supported: torch, fused"),
        (["--random", "rnnt", "--encoder", "small", "--context", "70,3"], "att_context_size: [70, 3] is not supported"),
        (["--context", "70"], "context '70': expected LEFT,RIGHT"),
        (["--context", "70,-1"], "--context is '70,-1'"),
        (["--device", "tpu"], "--device is 'tpu'; accepted: cpu"),
        (["--audio", "a.wav"], "--audio goes with --model"),
        (["--model", "m", "--size", "small"], "--size goes with --random"),
        (["--model", "/nowhere"], "/nowhere: no such file or directory"),
        (["--json", "/nowhere/x.json"], "--json: /nowhere/x.json: there is no directory"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_rejected_by_name(arguments, message):
    with pytest.raises(PenstockError) as raised:
        run(*arguments)
    assert message in str(raised.value)


def test_a_missing_nemo_is_named(monkeypatch):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match="--nemo: nemo_toolkit is not installed"):
        run("--nemo")


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--device", "cuda", "--json", path) == 0
    report = read(path)
    drivers = {"no_graphs", "no_while_loops"} | ({"full_graph"} if missing_for_while_nodes() is None else set())
    kernels = {"torch", "fused"} if why_unavailable("cuda") is None else {"torch"}
    for workload in report["workloads"]:
        assert not any(unavailable["is_failure"] for unavailable in workload["unavailable"])
        greedy = [result for result in workload["results"] if result["beam"] is None]
        projected = [result for result in greedy if result["projections"] == "precomputed"]
        assert {(result["driver"], result["kernels"]) for result in projected} == set(product(drivers, kernels))
        assert {(r["driver"], r["kernels"]) for r in greedy if r not in projected} == set(product(drivers, ["torch"]))
        assert all(result["total_rtfx"] > 0 for result in workload["results"])
        assert all(result["streams_as_label_looping"] == 1.0 for result in greedy)


def test_random_weights_have_phrases_too(tmp_path):
    path = tmp_path / "boosted.json"
    assert run(*TINY, "--random", "rnnt", "--decoders", "label-looping,boosted", "--json", path) == 0
    (workload,) = read(path)["workloads"]
    (boosted,) = (r for r in workload["results"] if r["decoder"] == "boosted" and r["batch"] == 2)
    assert workload["unavailable"] == [] and boosted["labels"] > 0
    assert boosted["streams_as_label_looping"] == 1.0, "a faint boost leaves the labels"
