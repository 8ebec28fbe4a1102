"""`penstock benchmark decoding`: the JSON, the table, the exit status, and what is refused by name."""

import argparse
import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch

from penstock.benchmarking import decoding
from penstock.benchmarking.contestant import Absence, Entry
from penstock.benchmarking.random_encoder import ENCODERS, EncoderSizes
from penstock.benchmarking.random_transducer import SIZES, Sizes
from penstock.commands import benchmark
from penstock.cuda_graphs import obstacle_to_while
from penstock.errors import PenstockError
from penstock.kernels.capability import why_unavailable
from tests.golden import AN4

ENTRY_FIELDS = ("implementation", "decoder", "driver", "beam", "projections", "span", "kernels")
OURS = {
    ("label-looping", None, "precomputed"), ("label-looping", None, "each time"),
    ("frame-looping", None, "precomputed"), ("frame-looping", None, "each time"),
    ("alsd", 1, "precomputed"), ("alsd", 2, "precomputed"), ("aes", 1, "precomputed"), ("aes", 2, "precomputed"),
}  # fmt: skip
TINY = ("--size", "tiny", "--batch", "1,2", "--beams", "1,2", "--seconds", "0.96", "--repeats", "1")


@pytest.fixture(autouse=True)
def small_and_alone(monkeypatch):
    """The command may set threads and the allocator of its own process, not those of the tests."""
    monkeypatch.setattr("penstock.cpu.prepare_process", lambda threads: None)
    monkeypatch.setitem(SIZES, "tiny", Sizes(8, 16, 12))


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    benchmark.add_parser(parser.add_subparsers())
    args = parser.parse_args(["benchmark", "decoding", *map(str, arguments)])
    return args.run(args)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def check_results(subject: dict, batches: list[int]) -> None:
    """Every line for every batch, labels alike, figures positive and of one piece."""
    results = subject["results"]
    rows = [(r["decoder"], r["beam"], r["projections"], r["batch"]) for r in results]
    assert len(set(rows)) == len(rows)
    assert set(rows) == {(*row, batch) for row in OURS for batch in batches}
    for result in results:
        assert tuple(result)[: len(ENTRY_FIELDS)] == ENTRY_FIELDS
        assert (result["implementation"], result["driver"], result["span"]) == ("penstock", "eager", "chunks")
        assert result["kernels"] == "torch"
        seconds, audio_s = result["decoder_s"], result["audio_s"]
        assert 0 < seconds["least"] <= seconds["median"] <= seconds["most"] < math.inf
        assert (seconds["least"], seconds["most"]) == (min(result["rounds_s"]), max(result["rounds_s"]))
        assert result["decoder_to_label_looping"] > 0
        assert audio_s == pytest.approx(result["batch"] * subject["stream_s"])
        assert result["non_encoder_rtfx"] == pytest.approx(audio_s / seconds["median"])
        assert result["decoder_s_per_audio_s"] == pytest.approx(seconds["median"] / audio_s)
        if subject["has_encoder"]:
            both = seconds["median"] + result["encoder_s"]["median"]
            assert result["total_rtfx"] == pytest.approx(audio_s / both)
            assert result["decoder_share"] == pytest.approx(seconds["median"] / both)
            assert result["total_to_label_looping"] > 0
        else:
            assert result["encoder_s"] is result["total_rtfx"] is result["decoder_share"] is None
            assert subject["encoder"] is result["total_to_label_looping"] is None
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
        "penstock-decoding-benchmark", 1, "cpu", 1,
    )  # fmt: skip
    assert all(report[name] for name in ("penstock", "date", "hardware", "command", "python"))
    assert torch.__version__.startswith(report["packages"]["torch"].partition("+")[0])
    assert "commit" in report and report["load_average_before"] >= 0
    assert report["plan"]["batches"] == [1, 2] and report["plan"]["repeats"] == 1
    assert [subject["kind"] for subject in report["subjects"]] == ["rnnt", "tdt"]
    for subject in report["subjects"]:
        assert (subject["stream_encoder_frames"], subject["chunk_encoder_frames"], subject["context"]) == (
            12,
            4,
            [8, 3],
        )
        assert subject["transducer"]["vocabulary_size"] == 12
        assert (subject["has_encoder"], subject["absent"]) == (False, [])
        check_results(subject, [1, 2])
    out = capsys.readouterr().out
    assert "no encoder" in out and "Total RTFx" not in out
    lines = [line for line in out.splitlines() if line.startswith("| penstock alsd, K=2 ")]
    assert len(lines) == 8, "time, RTFx, ratio and labels of both kinds"


def test_a_model_with_its_encoder(bundled_model, tmp_path, capsys):
    path, audio = tmp_path / "decoding.json", sorted(AN4.rglob("*.flac"))[:2]
    options = ("--batch", "2,1", "--beams", "1,2", "--seconds", 1.2, "--repeats", 1, "--context", "70,6")
    chosen = ("--model", bundled_model, "--audio", audio[0], "--audio", audio[1])
    assert run(*chosen, *options, "--json", path) == 0
    (subject,) = read(path)["subjects"]
    assert (subject["context"], subject["stream_s"], subject["has_encoder"]) == ([70, 6], 1.2, True)
    check_results(subject, [2, 1])
    out = capsys.readouterr().out
    assert "Total RTFx" in out and "Share of the time" in out and str(audio[1]) in out
    assert subject["encoder"]["d_model"] == 144 and "to that with our label-looping" in out


def test_random_weights_with_an_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(ENCODERS, "small", EncoderSizes(1, 16, 2, 4))
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--random", "tdt", "--encoder", "small", "--context", "8,3", "--json", path) == 0
    (subject,) = read(path)["subjects"]
    check_results(subject, [1, 2])
    assert (subject["has_encoder"], subject["encoder"]["n_layers"]) == (True, 1)
    assert "encoder timed: small" in capsys.readouterr().out


def test_kernels_that_are_asked_for_in_vain_are_named(tmp_path, capsys):
    path = tmp_path / "decoding.json"
    chosen = ("--random", "rnnt", "--decoders", "label-looping", "--kernels", "fused,torch")
    assert run(*TINY, *chosen, "--json", path) == 0
    report = read(path)
    (subject,) = report["subjects"]
    assert report["plan"]["kernels"] == ["fused", "torch"]
    (absent,) = subject["absent"]
    assert (absent["kernels"], absent["reason"]) == ("fused", "kernels run on CUDA devices, not on cpu")
    assert "- penstock label-looping, fused: kernels run on" in capsys.readouterr().out


def test_without_audio_a_model_gets_a_made_up_sound(bundled_model, capsys):
    options = ("--batch", 1, "--seconds", 1, "--repeats", 1, "--decoders", "label-looping")
    assert run("--model", bundled_model, *options) == 0
    assert "made up" in capsys.readouterr().out


def test_every_line_of_several_models_in_one_call(bundled_model, tmp_path, capsys):
    path, audio = tmp_path / "decoding.json", sorted(AN4.rglob("*.flac"))[0]
    models = ("--model", bundled_model, "--model", bundled_model.with_name("an4-tdt-hybrid"))
    options = ("--batch", "2", "--beams", "1,2", "--seconds", 0.6, "--repeats", 1, "--context", "70,6")
    assert run(*models, "--audio", audio, *options, "--decoders", "all", "--json", path) == 0
    subjects = read(path)["subjects"]
    assert [(s["name"], s["kind"], s["absent"]) for s in subjects] == [
        ("an4-rnnt-hybrid", "rnnt", []), ("an4-tdt-hybrid", "tdt", []),
    ]  # fmt: skip
    for subject in subjects:
        rows = {(r["decoder"], r["beam"], r["projections"]) for r in subject["results"]}
        assert rows == OURS | {("boosted", None, "precomputed")}
    out = capsys.readouterr().out
    assert out.count("| penstock boosted ") == 2 * 7, "a line of every table"


def test_only_what_is_asked_for(tmp_path):
    path = tmp_path / "decoding.json"
    chosen = ("--random", "tdt", "--decoders", "alsd,label-looping,alsd", "--beams", "2,2", "--batch", "1,1")
    assert run(*TINY, *chosen, "--json", path) == 0
    (subject,) = read(path)["subjects"]
    assert subject["kind"] == "tdt"
    found = [(r["decoder"], r["projections"], r["beam"], r["batch"]) for r in subject["results"]]
    assert found == [
        ("alsd", "precomputed", 2, 1),
        ("label-looping", "precomputed", None, 1),
        ("label-looping", "each time", None, 1),
    ]


def test_a_failing_decoder_is_named_and_makes_the_status_1(tmp_path, monkeypatch, capsys):
    absence = Absence(Entry("penstock", "aes", "eager", 2), "failed at batch 1: RuntimeError: lost", is_failure=True)
    real = decoding.set_up

    def with_absence(subject, plan):
        field = real(subject, plan)
        field.absent.append(absence)
        return field

    monkeypatch.setattr(decoding, "set_up", with_absence)
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--random", "rnnt", "--decoders", "label-looping", "--json", path) == 1
    (absent,) = read(path)["subjects"][0]["absent"]
    assert (absent["decoder"], absent["beam"], absent["is_failure"]) == ("aes", 2, True)
    assert "- penstock aes, K=2: failed at batch 1: RuntimeError: lost" in capsys.readouterr().out


def test_what_is_done_stays_if_the_rest_is_interrupted(tmp_path, monkeypatch):
    real = decoding.measure

    def interrupted(subject, field, plan):
        yield next(real(subject, field, plan))
        raise KeyboardInterrupt

    monkeypatch.setattr(decoding, "measure", interrupted)
    path = tmp_path / "decoding.json"
    with pytest.raises(KeyboardInterrupt):
        run(*TINY, "--random", "rnnt", "--json", path)
    (subject,) = read(path)["subjects"]
    check_results(subject, [1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch is 0, expected 1 .. 4096"),
        (["--batch", "1,x"], "--batch is '1,x', expected whole numbers"),
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
        (["--device", "tpu"], "--device is 'tpu', expected cpu"),
        (["--audio", "a.wav"], "--audio goes with --model"),
        (["--model", "m", "--size", "small"], "--size goes with --random"),
        (["--model", "/nowhere"], "/nowhere: no such file or directory"),
        (["--json", "/nowhere/x.json"], "--json: /nowhere/x.json: there is no directory"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_refused_by_name(arguments, message):
    with pytest.raises(PenstockError) as raised:
        run(*arguments)
    assert message in str(raised.value)


def test_too_little_audio_is_refused(bundled_model):
    with pytest.raises(PenstockError, match="the streams have 1 samples, too few for one encoder frame"):
        run("--model", bundled_model, "--seconds", 1e-5)


def test_an_unknown_context_of_a_model_is_refused(bundled_model):
    with pytest.raises(PenstockError, match=r"context \[70,2\] is not one of this checkpoint's"):
        run("--model", bundled_model, "--context", "70,2")


def test_nemo_that_is_not_there(monkeypatch):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match="--nemo: nemo_toolkit is not installed"):
        run("--nemo")


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    path = tmp_path / "decoding.json"
    assert run(*TINY, "--device", "cuda", "--json", path) == 0
    report = read(path)
    drivers = {"eager", "staged"} | ({"while"} if obstacle_to_while(torch.device("cuda")) is None else set())
    kernels = {"torch", "fused"} if why_unavailable("cuda") is None else {"torch"}
    for subject in report["subjects"]:
        assert not any(absent["is_failure"] for absent in subject["absent"])
        greedy = [result for result in subject["results"] if result["beam"] is None]
        projected = [result for result in greedy if result["projections"] == "precomputed"]
        assert {(result["driver"], result["kernels"]) for result in projected} == set(product(drivers, kernels))
        assert {(r["driver"], r["kernels"]) for r in greedy if r not in projected} == set(product(drivers, ["torch"]))
        assert all(result["total_rtfx"] > 0 for result in subject["results"])
        assert all(result["streams_as_label_looping"] == 1.0 for result in greedy)


def test_phrase_lists_cost_something_and_can_be_measured(bundled_model, tmp_path):
    path, audio = tmp_path / "boosted.json", sorted(AN4.rglob("*.flac"))[0]
    options = ("--batch", "2", "--seconds", 1.2, "--repeats", 1, "--decoders", "label-looping,boosted")
    assert run("--model", bundled_model, "--audio", audio, *options, "--json", path) == 0
    (subject,) = read(path)["subjects"]
    boosted = [result for result in subject["results"] if result["decoder"] == "boosted"]
    assert len(boosted) == 1 and boosted[0]["labels"] > 0


def test_random_weights_have_phrases_too(tmp_path):
    path = tmp_path / "boosted.json"
    assert run(*TINY, "--random", "rnnt", "--decoders", "label-looping,boosted", "--json", path) == 0
    (subject,) = read(path)["subjects"]
    (boosted,) = (r for r in subject["results"] if r["decoder"] == "boosted" and r["batch"] == 2)
    assert subject["absent"] == [] and boosted["labels"] > 0
    assert boosted["streams_as_label_looping"] == 1.0, "so faint a boost leaves the labels"
