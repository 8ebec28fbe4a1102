"""`penstock evaluate`: table, JSON report, exit status, and errors that come before the work."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.cli import main
from penstock.commands import evaluate
from penstock.errors import PenstockError
from penstock.evaluation.runs import Outcome
from penstock.transcription.files import FileTranscript
from tests.helpers.fresh_process import run_penstock
from tests.helpers.golden import AN4, golden_utterances

MANIFEST = str(AN4 / "manifest.jsonl")


@pytest.fixture
def noise(tmp_path) -> str:
    """A manifest of a second of noise without speech."""
    soundfile.write(tmp_path / "noise.wav", np.random.default_rng(0).normal(0, 0.05, 16000), 16000)
    path = tmp_path / "noise.jsonl"
    path.write_text(json.dumps({"audio_filepath": "noise.wav", "duration": 1.0, "text": ""}) + "\n")
    return str(path)


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_parser(parser.add_subparsers())
    args = parser.parse_args(["evaluate", *map(str, arguments)])
    return args.run(args)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported(bundled_model, tmp_path_factory) -> dict:
    """The JSON report of two contexts, streams of unequal number and length."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    contexts = ("--context", "70,6", "--context", "70,0", "--context", "70,6")
    divided = ("--streams", 2, "--processes", 2)
    done = run_penstock("evaluate", "--model", bundled_model, *contexts, *divided, "--json", path, MANIFEST)
    assert done.returncode == 0, done.stderr
    return read(path)


def test_the_hypotheses_are_those_of_nemo(reported):
    assert [result["context"] for result in reported["results"]] == [[70, 6], [70, 0]], "each once"
    for result in reported["results"]:
        assert result["decoder"] == "greedy"
        for golden, found in zip(golden_utterances(), result["utterances"], strict=True):
            assert found["audio"] == str(golden.path)
            assert found["hypothesis"] == golden.greedy(tuple(result["context"])).text
            assert found["reference"] == golden.text


def test_audio_without_speech_has_its_own_column(bundled_model, noise, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert run("--model", bundled_model, "--limit", 1, "--json", report, MANIFEST, noise) == 0
    assert "words/min without speech" in capsys.readouterr().out
    (result,) = read(report)["results"]
    assert (result["speech"]["utterances"], result["speech_free"]["utterances"]) == (1, 1)
    assert result["speech_free"]["audio_s"] == 1.0
    assert result["utterances"][1]["manifest"] == noise
    assert run("--model", bundled_model, noise) == 0
    assert "WER" not in capsys.readouterr().out


@pytest.fixture
def punctuated(tmp_path) -> Path:
    """The first two recordings with references as people write them, and one that says nothing."""
    found = golden_utterances()
    texts = [f"{found[0].text.capitalize()}.", f"({found[1].text})", found[2].text]
    lines = [{"audio_filepath": str(each.path), "text": text} for each, text in zip(found, texts, strict=False)]
    path = tmp_path / "written.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_normalizer_removes_punctuation_and_what_it_empties_is_left_out(bundled_model, punctuated, tmp_path, capsys):
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    golden = [golden_utterances()[i].greedy((70, 6)).text for i in (0, 2)]
    options = ("--model", bundled_model, "--context", "70,6", "--sweep", "max_symbols=5,10", "--html", page)
    assert run(*options, "--json", report, "--normalizer", "basic", punctuated) == 0
    out, err = capsys.readouterr()
    assert f"warning: {punctuated}:2: text: '(" in err and "has no word after basic (whisper-" in err
    assert "left out: 1 of 3" in err and "left out: 1 utterances" in out
    assert (read(report)["left_out"], read(report)["normalizer"][:5]) == ([f"{punctuated}:2"], "basic")
    for result, value in zip(read(report)["results"], (5, 10), strict=True):
        assert result["decoder"] == f"greedy:max_symbols={value}"
        assert [each["hypothesis"] for each in result["utterances"]] == golden
        assert "." not in result["utterances"][0]["reference"]
    assert page.read_text(encoding="utf-8").count('"opus":') == 2
    assert run("--model", bundled_model, "--limit", 1, "--json", report, "--force", punctuated) == 0
    assert read(report)["normalizer"] == "none", "the model writes no punctuation"
    assert read(report)["results"][0]["utterances"][0]["reference"].endswith(".")
    punctuated.write_text(punctuated.read_text().splitlines()[1])
    with pytest.raises(
        PenstockError, match=r"MANIFEST_INVALID: .*:1: text: .* has no word after basic .*; nor has any"
    ):
        run("--model", bundled_model, "--normalizer", "basic", punctuated)


def test_an_utterance_that_fails_on_the_way_is_left_out_and_named(bundled_model, tmp_path, monkeypatch, capsys):
    transcribe = "penstock.transcription.files.FileTranscriber.transcribe_numbered"

    def fail_second(self, files, on_audio):
        for i, path in files:
            yield i, [FileTranscript(str(path), None, 1.0, "a", error=f"{path}: the step failed" if i == 1 else None)]

    monkeypatch.setattr(transcribe, fail_second)
    report = tmp_path / "report.json"
    assert run("--model", bundled_model, "--json", report, MANIFEST) == 1
    captured = capsys.readouterr()
    assert captured.err == f"penstock: error: {golden_utterances()[1].path}: the step failed\n"
    assert "failed" in captured.out
    (result,) = read(report)["results"]
    assert (result["failed_utterances"], result["speech"]["utterances"]) == (1, 5)
    assert result["utterances"][1]["error"] == f"{golden_utterances()[1].path}: the step failed"
    with pytest.raises(PenstockError, match="no utterance could be recognized; the first: "):
        lost = [FileTranscript("a.wav", error="lost")]
        monkeypatch.setattr(transcribe, lambda self, files, on_audio: ((i, lost) for i, _ in files))
        run("--model", bundled_model, MANIFEST)


def test_a_run_that_fails_does_not_lose_those_before_it(bundled_model, monkeypatch, capsys):
    def only_in_one_context(recognizer, utterances, *_):
        text = "a" if recognizer.context.right == 6 else None
        return (Outcome(i, text or "", None if text else "lost") for i in range(len(utterances)))

    monkeypatch.setattr("penstock.evaluation.runs.recognize_in_process", only_in_one_context)
    with pytest.raises(PenstockError, match="RUN_FAILED: no utterance could be recognized; the first: lost"):
        run("--model", bundled_model, "--context", "70,6", "--context", "70,1", "--limit", 1, MANIFEST)
    assert "|  [70,6] |  greedy |" in capsys.readouterr().out


def test_a_wrong_duration_is_warned_of(bundled_model, noise, capsys):
    manifest = Path(noise)
    manifest.write_text(json.dumps({"audio_filepath": "noise.wav", "duration": 9, "text": ""}) + "\n")
    assert run("--model", bundled_model, noise) == 0
    warning = f"penstock: warning: {noise}:1: duration: 9 s, but {manifest.parent}/noise.wav lasts 1 s"
    assert capsys.readouterr().err.startswith(warning)


@pytest.fixture
def no_model(monkeypatch):
    """Fails the test where a model is loaded."""
    monkeypatch.setattr("penstock.recognizer.StreamingRecognizer.__init__", lambda *_: pytest.fail("work has begun"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--device", "tpu"], "--device is 'tpu'; accepted: cpu"),
        (["--precision", "int4"], "--precision is 'int4'; accepted: auto, float32"),
        (["--context", "70"], "context '70': expected LEFT,RIGHT"),
        (["--context", "70,5"], r"context \[70,5\] is not one of this checkpoint's"),
        (["--decoder", "greedy", "--decoder", "wfst"], "'wfst' is not offered: it needs a decoding"),
        (["--decoder", "greedy:ilm_beta=1"], "ilm_beta is 1, but the model has no internal"),
        (["--decoder", "greedy:lm=gone,lm_weight=1"], "LM_INVALID: gone: No such file"),
        (["--decoder", "wfst:graph=gone"], "GRAPH_INVALID: gone: cannot be read"),
        (["--json", "nowhere/report.json"], "--json: nowhere/report.json: there is no directory"),
        (["--sweep", "beam=2,4"], "'greedy:beam=2': 'beam' is not an option of greedy; options: lm"),
        (["--json", "."], "--json: .: is a directory"),
        (["gone.jsonl"], r"gone\.jsonl: No such file"),
        (["--url", "localhost:1", "--model", "x"], "--model cannot be combined with --url"),
        (["--url", "here"], "--url: url is 'here'"),
    ],
)
def test_wrong_options_are_named(bundled_model, no_model, arguments, match):
    with pytest.raises(PenstockError, match=match):
        run(*(() if "--url" in arguments else ("--model", bundled_model)), *arguments, MANIFEST)


def test_a_file_that_cannot_be_read_is_named_before_the_work(bundled_model, no_model, tmp_path):
    (tmp_path / "broken.flac").write_bytes(b"no audio")
    manifest = tmp_path / "set.jsonl"
    lines = [{"audio_filepath": str(golden_utterances()[0].path), "text": "a"}]
    lines.append({"audio_filepath": "broken.flac", "text": "b"})
    manifest.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(PenstockError, match=r"set\.jsonl:2: audio_filepath: .*broken\.flac: not a readable audio file"):
        run("--model", bundled_model, manifest)


def test_a_missing_extra_is_named(bundled_model, no_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(PenstockError, match="jiwer is not installed: pip install 'jiwer>=4'"):
        run("--model", bundled_model, MANIFEST)


def test_a_model_in_the_environment_does_not_stand_in_the_way_of_a_server(bundled_model, monkeypatch):
    monkeypatch.setenv("PENSTOCK_MODEL", str(bundled_model))
    with pytest.raises(PenstockError, match=r"cannot reach a server at 127\.0\.0\.1:9"):
        run("--url", "127.0.0.1:9", MANIFEST)


@pytest.fixture
def speakers(speaker_bundle) -> str:
    return str(speaker_bundle.directory)


@pytest.fixture
def conversation(tmp_path) -> Path:
    """A manifest of two recordings with what each speaker says."""
    path, lines = tmp_path / "conversation.jsonl", Path(MANIFEST).read_text().splitlines()[:2]
    for line in lines:
        entry = json.loads(line)
        entry["audio_filepath"] = str(AN4 / entry["audio_filepath"])
        first, _, rest = entry["text"].partition(" ")
        entry["segments"] = [
            {"speaker": "A", "text": first},
            {"speaker": 2, "text": rest},
            {"speaker": "A", "text": ""},
        ]
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return path


def test_errors_of_who_spoke(speakers, conversation, tmp_path, capsys):
    """The turns that `transcribe` finds are the reference; then one recording has none."""
    files = [json.loads(line)["audio_filepath"] for line in conversation.read_text().splitlines()]
    found, report = tmp_path / "rttm", tmp_path / "report.json"
    command = ["transcribe", "--speakers", speakers, "--processes", "1", "--out", str(found), "--format", "rttm"]
    assert main([*command, *files]) == 0
    arguments = ("--speakers", speakers, "--rttm", found, "--json", report, "--force", "--processes", 1, conversation)
    assert run(*arguments) == 0
    assert "DER %, collar 0.25 s | cpWER %" in capsys.readouterr().out
    (result,) = read(report)["results"]
    assert [each["collar_s"] for each in result["diarization"]] == [0.0, 0.25]
    assert result["diarization"][0]["der"] < 1e-6 < result["diarization"][0]["speech_s"]
    words = result["speaker_words"]
    assert words["words"] == result["speech"]["words"] and words["wer"] == pytest.approx(
        sum(words[name] for name in ("substitutions", "deletions", "insertions")) / words["words"]
    )
    speech_s = [each["diarization"][0]["speech_s"] for each in result["utterances"]]
    assert sum(speech_s) == pytest.approx(result["diarization"][0]["speech_s"])
    (found / f"{Path(files[1]).stem}.rttm").write_text("")
    assert run(*arguments) == 0
    (changed,) = read(report)["results"]
    assert changed["diarization"][0]["false_alarm_s"] == pytest.approx(speech_s[1])


def test_texts_of_speakers_without_turns(speakers, conversation, capsys):
    assert run("--speakers", speakers, "--processes", 1, conversation) == 0
    assert "cpWER" in (text := capsys.readouterr().out) and "DER" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rttm", "x.rttm"], "--rttm needs --speakers BUNDLE"),
        (["--speakers", "x"], "--speakers needs --rttm PATH, or `segments`"),
        (["--speakers", "x", "--join", "2"], "--speakers is given with --join"),
        (["--speakers", "x", "--url", "localhost:1"], "--speakers cannot be combined with --url"),
        (["--speakers", "x", "--rttm", "none.rttm"], "none.rttm: No such file"),
    ],
)
def test_speaker_options_that_are_rejected(arguments, message):
    with pytest.raises(PenstockError) as error:
        run(*arguments, MANIFEST)
    assert message in str(error.value)


@pytest.fixture
def parts(tmp_path) -> Path:
    """A manifest of six recordings and a part of each."""
    (tmp_path / "audio").symlink_to(golden_utterances()[0].path.parent)  # shards depend on names
    lines = [
        {"audio_filepath": f"audio/{each.path.name}", "text": each.text, "speaker": str(number % 2)} | part
        for number, each in enumerate(golden_utterances())
        for part in ({}, {"offset": 0.25, "duration": 0.9, "text": each.text.split()[0]})
    ]
    path = tmp_path / "parts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_three_shards_merged_are_the_whole(bundled_model, parts, tmp_path, capsys):
    reports = [tmp_path / f"{number}.json" for number in range(4)]
    options = ("--model", bundled_model, "--decoder", "greedy", "--decoder", "greedy:max_symbols=1")
    assert run(*options, "--json", reports[0], parts) == 0
    for number in (1, 2, 3):
        assert run(*options, "--shard", f"{number}/3", "--json", reports[number], parts) == 0
    assert [len(read(path)["results"][1]["utterances"]) for path in reports[1:]] != [12, 0, 0]
    merged, page = tmp_path / "merged.json", tmp_path / "page.html"
    assert run("--merge", reports[3], *reports[1:3], "--json", merged, "--html", page) == 0
    whole, found = read(reports[0]), read(merged)
    for each in (whole, found):
        each.update(hardware="", date="", streams=0, processes=0)
        for result in each["results"]:
            result.update(elapsed_s=0, rtfx=None, cpu_rtfx=None)
    assert found == whole
    assert [each.get("offset") for each in found["results"][0]["utterances"]] == [None, 0.25] * 6
    assert all(0.5 < each["audio_s"] <= 0.9 for each in found["results"][0]["utterances"][1::2])
    assert page.read_text(encoding="utf-8").count('"opus":') == 12
    assert "2 shards" not in capsys.readouterr().out
    second = tmp_path / "second.json"
    second.write_text(reports[2].read_text().replace('"normalizer": "none"', '"normalizer": "basic"'))
    for given, message in (
        (reports[1:3], "accepted: all 12 of 3 shards, each once"),
        ([*reports[1:], reports[1]], "accepted: all 12 of 3 shards, each once"),
        ([reports[1], second, reports[3]], "normalizer differs: .* has 'none', .*second.json has 'basic'"),
        (reports[:1], "0.json is not of a shard; accepted: reports of `penstock evaluate --shard`"),
        ([reports[1], "--limit", 1], "--limit cannot be combined with --merge"),
    ):
        with pytest.raises(PenstockError, match=message):
            run("--merge", *given)


def test_a_shard_without_utterances_is_no_error(noise, tmp_path, capsys):
    statuses = [run("--shard", f"{number}/9", noise, "--model", "gone") for number in range(2, 10)]
    assert statuses == [0] * 8 and "penstock: shard 9/9 has none of the 1 utterances" in capsys.readouterr().err
    with pytest.raises(PenstockError, match="--shard is given with --join"):
        run("--shard", "1/2", "--join", "2", noise)
