"""`penstock transcribe`: output, exit status, and errors that name what is wrong."""

import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.cli import main
from penstock.errors import PenstockError
from penstock.model.languages import without_tags
from tests.helpers.fresh_process import run_penstock
from tests.helpers.golden import golden_case, golden_pcm, golden_prompted, golden_utterances
from tests.helpers.interrupt import start_interruptible
from tests.helpers.transcribe_command import lines, run

ROOT = Path(__file__).parents[2]
AUDIO = str(ROOT / "tests/data/an4/flac/an395-mjwl-b.flac")


@pytest.mark.parametrize("request_ms", ["7", "30000"])
def test_json(model, audio, capsys, request_ms):
    assert run("--model", model, "--context", "6,1", "--json", "--request-ms", request_ms, *audio) == 0
    for path, line in zip(audio, lines(capsys), strict=True):
        document = json.loads(line)
        golden = golden_case("rnnt_hybrid").greedy((6, 1), Path(path).stem)
        lists = ["tokens", "timestamps", "words", "alternatives", "segments"]
        assert list(document) == ["audio", "text", "language", *lists, "audio_s", "remarks", "latency_ms"]
        counts = {"words": len(document["words"]), "tokens": len(document["tokens"])}
        assert document["segments"] == [{"text": document["text"], "language": "", **counts, "alternatives": []}]
        assert (document["audio"], document["tokens"]) == (path, golden.tokens)
        assert document["timestamps"] == golden.timestamps
        assert document["audio_s"] == len(golden_pcm(Path(path).stem)) / 16000
        assert [word["word"] for word in document["words"]] == document["text"].split()
        assert all(set(word) == {"word", "start_ms", "end_ms", "confidence"} for word in document["words"])


def test_a_directory_to_files_in_two_processes(model, audio, tmp_path, capsys):
    """Results are those of the files one by one; one that fails is named."""
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    folder, out = str(Path(audio[0]).parent), tmp_path / "results"
    command = ("--model", model, "--context", "6,1", "--out", str(out), "--format", "json,txt", "--processes", "2")
    done = run_penstock("transcribe", *command, folder)
    assert (done.returncode, done.stdout) == (1, "")
    first, summary = done.stderr.splitlines()
    assert first.startswith(f"penstock: error: AUDIO_INVALID: {folder}/broken.wav: not a readable audio file")
    assert summary.startswith("penstock: 3 files, 0:0")
    loaded = r"\(the model was loaded in \d+\.\d s before\)"
    assert re.search(rf" x real time {loaded}, 1 failed; results are in {re.escape(str(out))}$", summary)
    assert sorted(path.name for path in out.iterdir()) == ["medium.json", "medium.txt", "short.json", "short.txt"]
    for path in audio:
        assert run("--model", model, "--context", "6,1", "--json", path) == 0
        (alone,), found = map(json.loads, lines(capsys)), json.loads((out / f"{Path(path).stem}.json").read_text())
        for name in ("audio", "text", "tokens", "timestamps", "audio_s"):
            assert found[name] == alone[name]
        assert [w["start_ms"] for w in found["words"]] == [w["start_ms"] for w in alone["words"]]


def test_watched_directories_are_transcribed_until_a_signal(model, audio, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "day").mkdir(parents=True)
    command = [sys.executable, "-m", "penstock.cli", "transcribe", "--watch", str(folder), "--model", model, "--out"]
    with start_interruptible([*command, str(out), "--context", "6,1"]) as process:
        try:
            for number, path in enumerate(audio):
                name = folder / "day" / f"{number}.wav"
                shutil.copy(path, name)
                deadline_s = time.monotonic() + 60
                while not (out / "day" / f"{number}.txt").exists():
                    assert process.poll() is None and time.monotonic() < deadline_s
                    time.sleep(0.05)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    for arguments, named in (
        (["--out", str(out), audio[0]], "other audio than directories"),
        ([str(folder)], "--watch needs --out DIR"),
        ([str(folder), "--out", str(out), "--processes", "2"], "--processes cannot be combined with --watch"),
    ):
        with pytest.raises(PenstockError, match=named):
            run("--model", model, "--watch", *arguments)


def test_results_that_exist_are_kept_unless_forced(model, audio, tmp_path, capsys):
    out = tmp_path / "out"
    command = ("--model", model, "--context", "6,1", "--out", str(out))
    out.mkdir()
    (out / "short.txt").write_text("mine")
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: .*short\.txt exists; --force overwrites"):
        run(*command, *audio)
    assert [path.name for path in out.iterdir()] == ["short.txt"], "nothing has begun"
    assert run(*command, "--resume", *audio) == 0
    assert (out / "short.txt").read_text() == "mine"
    assert (out / "medium.txt").exists()
    assert run(*command, "--resume", *audio) == 0
    assert "the results of all files exist" in capsys.readouterr().err
    assert run(*command, "--force", *audio) == 0
    assert (out / "short.txt").read_text() != "mine"


def test_names_that_are_not_utf8(model, audio, tmp_path, monkeypatch):
    name = os.fsdecode(b"caf\xe9.wav")
    path = os.path.join(tmp_path, name)
    os.rename(audio[1], path)
    command = ["transcribe", "--model", model, path]
    for more in ([audio[0]], ["--json"], ["--out", str(tmp_path / "out"), "--format", "txt,json"]):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        assert main([*command, *more]) == 0
        printed = sys.stdout.buffer.getvalue().decode()
        if more == ["--json"]:
            assert json.loads(printed)["audio"] == path
        elif more == [audio[0]]:
            assert printed.startswith(f"{tmp_path}/caf\\udce9.wav: ")
    assert json.loads((tmp_path / "out" / os.fsdecode(b"caf\xe9.json")).read_text())["audio"] == path


def test_progress_is_shown_on_a_terminal(model, audio, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert run("--model", model, *audio) == 0
    assert "of 2 files, 0:0" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K"), "the line is removed"
    assert len(lines(capsys)) == 2


def test_segments_say_which_timestamps_are_theirs(bundled_model, tmp_path, capsys):
    first, second = (soundfile.read(utterance.path, dtype="float32")[0] for utterance in golden_utterances()[:2])
    soundfile.write(tmp_path / "two.wav", np.concatenate([first, np.zeros(24_000, np.float32), second]), 16_000)
    command = ["--model", str(bundled_model), "--endpoint-silence-ms", "800", "--json", str(tmp_path / "two.wav")]
    assert run(*command) == 0
    document = json.loads(capsys.readouterr().out)
    counts = [segment["tokens"] for segment in document["segments"]]
    assert len(counts) >= 2 and sum(counts) == len(document["timestamps"])
    times = document["timestamps"]
    assert times[: counts[0]] == sorted(times[: counts[0]]) and times[counts[0]] < times[counts[0] - 1]


def test_the_language_is_chosen_and_named(golden_bundle, tmp_path, capsys):
    model, path = str(golden_bundle("prompt_hybrid").directory), str(tmp_path / "long.wav")
    soundfile.write(path, golden_pcm("long").numpy(), 16000)
    for golden in golden_prompted():
        if (golden.context, golden.signal) == ((56, 3), "long"):
            chosen = ["--model", model, "--context", "56,3", "--language", golden.language, path]
            assert run("--json", *chosen) == 0
            document = json.loads(capsys.readouterr().out)
            assert (document["text"], document["tokens"]) == (golden.text, golden.tokens)
            assert run("--language-tags", "keep", *chosen) == 0
            kept = capsys.readouterr().out.strip()
            assert without_tags(kept) == golden.text
            assert f"<{document['language']}>" in kept if document["language"] else kept == golden.text


def test_a_nemo_file_is_imported_first(audio, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert run("--model", str(golden_case("rnnt_hybrid").nemo_path), "--context", "6,1", "--json", audio[1]) == 0
    document = json.loads(lines(capsys)[0])
    assert document["tokens"] == golden_case("rnnt_hybrid").greedy((6, 1), "short").tokens


def test_the_model_may_come_from_the_environment(model, audio, capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_MODEL", model)
    assert run(audio[1]) == 0


def test_standard_input(model, audio, capfd):
    with Path(audio[0]).open("rb") as file:
        kept = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert run("--model", model, "--json", "-") == 0
        finally:
            os.dup2(kept, 0)
            os.close(kept)
    document = json.loads(capfd.readouterr().out)
    assert (document["audio"], document["audio_s"]) == ("-", len(golden_pcm("medium")) / 16000)


def test_a_manifest_names_files_beside_it_or_anywhere(model, audio, capsys, tmp_path):
    manifest = tmp_path / "manifest.jsonl"
    entries = [{"audio_filepath": "short.wav", "duration": 1.0}, {"audio_filepath": audio[0], "text": "hello"}]
    manifest.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    assert run("--model", model, "--json", "--from-manifest", str(manifest), audio[1]) == 0
    assert [json.loads(line)["audio"] for line in lines(capsys)] == [audio[1], audio[1], audio[0]]


@pytest.mark.parametrize("line", ["[1]", "{", "3", "null", '{"audio": "a.wav"}', '{"audio_filepath": 3}', "\udcff"])
def test_a_wrong_manifest_is_named(model, tmp_path, line):
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_bytes(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(PenstockError, match=r"MANIFEST_INVALID: .*manifest\.jsonl:"):
        run("--model", model, "--from-manifest", str(manifest))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "no audio"),
        (["--request-ms", "0", "a.wav"], r"--request-ms is 0; accepted: numbers above 0, up to 30000"),
        (["--streams", "-1", "a.wav"], "--streams is -1"),
        (["--format", "srt", "a.wav"], "--format needs --out DIR"),
        (["--lattices", "o", "a.wav"], "--lattices needs --n-best N"),
        (["--lm", "x.arpa", "a.wav"], "--lm needs --lm-weight W, which is 0 by default"),
        (
            ["--decoder", "ctc", "--ilm-beta", "0", AUDIO],
            "--ilm-beta is given, but the decoder is ctc; accepted with: greedy, alsd, aes",
        ),
        (["--wfst-beam", "8", AUDIO], "--wfst-beam is given, but the decoder is greedy; accepted with: wfst"),
        (
            ["--lattices", "o", "--n-best", "2", "--endpoint-silence-ms", "800", "a.wav"],
            "--lattices is given with an endpoint; accepted: one segment",
        ),
        (
            ["--boost-phrase", "seven:x", AUDIO],
            "--boost-phrase: 'x' in 'seven:x' is not a number, expected TEXT or TEXT:BOOST",
        ),
        (["--json", "--out", "o", "a.wav"], "--json prints to standard output .* --format json"),
        (["--language", "de", AUDIO], "language is 'de', but the model has no language prompts"),
        (["--context", "70", "a.wav"], "--context is '70'; accepted: LEFT,RIGHT"),
        (["--context", "70,6", "a.wav"], r"context \[70,6\] is not one of this checkpoint's"),
    ],
)
def test_wrong_options_are_named(model, arguments, match):
    with pytest.raises(PenstockError, match=match):
        run("--model", model, *arguments)


def test_without_a_model_the_bundled_one_transcribes_and_is_named(capsys):
    assert run("--context", "70,6", str(ROOT / "tests/data/an4/flac/an395-mjwl-b.flac")) == 0
    printed = capsys.readouterr()
    assert printed.out == "enter one oh four\n"
    assert printed.err.startswith("penstock: no --model: using the bundled an4-rnnt-hybrid, a demo for letters")


def test_the_precision_reaches_the_recognizer(model, audio, caplog):
    with pytest.raises(PenstockError, match=r"--precision is 'int4'; accepted: auto, .*, int8"):
        run("--model", model, "--context", "6,1", "--precision", "int4", audio[1])
    assert run("--model", model, "--context", "6,1", "--precision", "int8", audio[1]) == 0
    assert "no product is large and exact enough for int8: float32 is used" in caplog.text
