"""The commands with an offline model: transcribe, evaluate, import and serve."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from penstock import OfflineRecognizer, StreamingRecognizer
from penstock.cli import main
from penstock.commands import serve
from penstock.errors import SettingError
from penstock.model.bundle import Checkpoint
from penstock.pipeline.memory.server_memory import audio_bytes_per_s
from penstock.serving.launch import Ports
from penstock.serving.settings import ServeOptions, Settings, audio_limit_s
from penstock.serving.triton_install import TritonInstall
from tests.helpers.fresh_process import run_penstock
from tests.helpers.golden import AN4
from tests.helpers.offline_models import offline_bundle, write_offline_nemo, write_offline_transformers
from tests.helpers.transcribe_command import lines, run


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(offline_bundle(tmp_path_factory.mktemp("offline"), "tdt_hybrid").directory)


def read(path: str) -> np.ndarray:
    return soundfile.read(path, dtype="float32")[0]


@pytest.mark.parametrize("options", [(), ("--streams", "1")], ids=["together", "alone"])
def test_json_is_what_the_library_finds(model, audio, capsys, options):
    assert run("--model", model, "--json", *options, *audio) == 0
    expected = OfflineRecognizer(model).transcribe([read(path) for path in audio])
    for path, line, one in zip(audio, lines(capsys), expected, strict=True):
        document = json.loads(line)
        assert (document["audio"], document["text"]) == (path, one.text)
        assert document["tokens"] == [token.id for token in one.tokens]
        assert document["timestamps"] == [token.timestamp for token in one.tokens]
        assert [word["start_ms"] for word in document["words"]] == [round(word.start_ms) for word in one.words]
        assert document["audio_s"] == len(read(path)) / 16000


def test_a_directory_in_two_processes_and_files_that_fail(model, audio, tmp_path):
    """Each bad file is named with a code; a file that is cut gives its text and a remark."""
    folder, out = Path(audio[0]).parent, tmp_path / "results"
    (folder / "broken.wav").write_bytes(b"no audio")
    soundfile.write(folder / "empty.wav", np.zeros(0, np.float32), 16000)
    soundfile.write(folder / "short_as_nothing.wav", np.zeros(100, np.float32), 16000)
    soundfile.write(folder / "nan.wav", np.full(16000, np.nan, np.float32), 16000, subtype="FLOAT")
    whole = Path(audio[0]).read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
    done = run_penstock(
        "transcribe", "--model", model, "--out", out, "--format", "json", "--processes", 2, "--channel", "mix", folder
    )
    assert done.returncode == 1
    errors = {Path(line.split(": ")[3]).name: line for line in done.stderr.splitlines() if ": error: " in line}
    assert set(errors) == {"broken.wav", "empty.wav", "short_as_nothing.wav", "nan.wav"}
    assert all(": error: AUDIO_INVALID: " in line for line in errors.values())
    assert "100 samples; accepted: at least 160 (10 ms)" in errors["short_as_nothing.wav"]
    assert sorted(path.name for path in out.iterdir()) == ["cut.json", "medium.json", "short.json"]
    half = OfflineRecognizer(model).transcribe([read(str(folder / "cut.wav"))])[0]
    document = json.loads((out / "cut.json").read_text())
    assert (document["text"], [remark["code"] for remark in document["remarks"]]) == (half.text, ["cut"])
    assert f"penstock: warning: {folder / 'cut.wav'}: is cut: ends at " in done.stderr


@pytest.mark.parametrize("flag", [("--context", "70,6"), ("--request-ms", "80")], ids=lambda flag: flag[0])
def test_flags_of_streams_are_rejected(model, audio, flag):
    problem = f"{flag[0]} is .*{flag[1][:2]}.*, but the model is an offline model; accepted: none"
    with pytest.raises(SettingError, match=problem):
        run("--model", model, *flag, *audio)


def test_attention(model, bundled_model, audio, capsys):
    assert run("--model", model, "--attention", "local=3,3", "--json", audio[0]) == 0
    (expected,) = OfflineRecognizer(model, attention="local=3,3").transcribe([read(audio[0])])
    assert json.loads(lines(capsys)[0])["tokens"] == [token.id for token in expected.tokens]
    with pytest.raises(SettingError, match="--attention is 'full', but the model is a streaming model; accepted: none"):
        run("--model", str(bundled_model), "--attention", "full", audio[0])


def test_live_windows(model, audio, capsys):
    """Requests of any size have the results of the library."""
    options = {"window": "1.6,0.8,0.4"}
    for flags in ((), ("--request-ms", "130")):
        assert run("--model", model, "--window", options["window"], "--json", *flags, *audio) == 0
        for path, line in zip(audio, lines(capsys), strict=True):
            stream = StreamingRecognizer(model).open_stream(options=options)
            assert json.loads(line)["text"] == stream.finish(read(path)).text
            assert json.loads(line)["timestamps"] == [token.timestamp for token in stream.tokens]
    with pytest.raises(SettingError, match="--attention is 'full', but --window is that of a live stream"):
        run("--model", model, "--window", "live", "--attention", "full", audio[0])


def test_evaluate(model, tmp_path, capsys):
    report = tmp_path / "report.json"
    manifest = AN4 / "manifest.jsonl"

    def evaluate(*arguments: str) -> tuple[int, str, str]:
        status = main(["evaluate", "--model", model, *arguments, str(manifest)])
        return status, *capsys.readouterr()

    status, out, err = evaluate("--decoder", "greedy", "--decoder", "alsd", "--json", str(report))
    assert status == 0, err
    assert out.replace(model, "").count("offline") == 2
    runs = json.loads(report.read_text())["results"]
    assert [run["context"] for run in runs] == [None, None]
    samples = [read(str(AN4 / json.loads(line)["audio_filepath"])) for line in manifest.read_text().splitlines()]
    found = OfflineRecognizer(model).transcribe(samples)
    assert [each["hypothesis"] for each in runs[0]["utterances"]] == [one.text for one in found]
    window = {"window": "1.6,0.8,0.4"}
    status, _, err = evaluate("--window", window["window"], "--json", str(report), "--force")
    assert status == 0, err
    document = json.loads(report.read_text())
    streams = StreamingRecognizer(model, max_streams=len(samples))
    found = [streams.open_stream(options=window).finish(each) for each in samples]
    assert [each["hypothesis"] for each in document["results"][0]["utterances"]] == [one.text for one in found]
    assert document["window"] == window["window"]
    wrong = "OPTION_INVALID: window is '1.6,0.85,0.4': 0.85 s is no multiple of 80 ms"
    assert wrong in evaluate("--window", "1.6,0.85,0.4")[2]
    wrong = "SETTING_INVALID: --context is '70,6', but the model is an offline model"
    assert wrong in evaluate("--context", "70,6")[2]


@pytest.mark.parametrize("form", ["nemo", "transformers"])
def test_import_says_that_it_is_offline_and_ignores_a_head_for_voice_activity(tmp_path, form, capsys, caplog):
    head = {f"vad_head.{layer}.weight": torch.zeros(3, 4) for layer in range(6)}
    if form == "nemo":
        path = write_offline_nemo(tmp_path / "model.nemo", "tdt_hybrid", change_state=lambda state: state.update(head))
    else:
        path = write_offline_transformers(tmp_path / "model")
        save_file(load_file(path / "model.safetensors") | head, path / "model.safetensors")
    assert main(["import", str(path), str(tmp_path / "bundle")]) == 0
    assert "48 tokens, offline" in capsys.readouterr().out
    assert "6 tensors vad_head.* are ignored: a head for voice activity" in caplog.text


def test_serve_says_what_files_it_takes(model, capsys, monkeypatch):
    monkeypatch.setattr(serve, "find_triton", lambda: TritonInstall(Path("tritonserver")))
    launched = []
    monkeypatch.setattr(serve, "serve_until_signal", lambda server, *_: launched.append(server._options))
    ports = [f"--{name}-port=0" for name in Ports._fields]
    command = ["serve", *ports, "--model", model, "--device=cpu", "--max-file-minutes=30"]
    assert main([*command, "--max-audio-s=7200"]) == 0
    output = capsys.readouterr().out
    assert "offline, files of up to 30 min" in output
    assert (
        "files: 7200 s of audio at a time, up to 300 MB (150 MB per hour of audio); a live stream counts as 14 s"
        in output
    )
    assert main(command) == 0  # as much as fits
    given, default = (Settings.from_environment(options.environment) for options in launched)
    assert (given.context, given.options.max_file_minutes, given.max_audio_s) == (None, 30, 7200)
    assert default.max_audio_s >= 600
    assert launched[0].information["windows"] == "file,long,live"
    assert not {"context", "chunk_ms", "chunk_samples"} & launched[0].information.keys()
    assert main([*command, "--context=70,6"]) == serve.REJECTED
    assert "--context is [70,6], but the model is offline; accepted: no --context" in capsys.readouterr().err


def test_files_have_the_memory_that_is_left_on_a_device(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options, config = ServeOptions(model=model, device="cuda", max_streams=4), Checkpoint(model).config
    found = []
    for gigabytes in (3, 4):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=gigabytes: (free * 10**9, 80 * 10**9))
        found.append(audio_limit_s(config, options))
    assert found[1] - found[0] == pytest.approx(0.8e9 / audio_bytes_per_s(config), abs=1)
