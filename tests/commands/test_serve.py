import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from penstock.cli import main
from penstock.commands import serve
from penstock.serving.launch import Ports, ServerOptions
from penstock.serving.settings import ServeOptions, Settings
from penstock.serving.triton_install import TritonInstall
from tests.helpers.ngram_golden import arpa_path

ROOT = Path(__file__).parents[2]


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield busy.getsockname()[1]


@pytest.fixture
def speakers(speaker_bundle) -> Path:
    return speaker_bundle.directory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere"], "MODEL_NOT_FOUND: nowhere: no such file or directory"),
        (["--model", "MODEL", "--context", "70,7"], r"context \[70,7\] is not one of this checkpoint's: \[70,13\]"),
        (["--model", "MODEL", "--model-repository", "src"], "src: not a model repository"),
        (["--model", "MODEL", "--http-port", "BUSY"], r"PORT_UNAVAILABLE: http port \d+ is in use"),
        (["--model", "MODEL", "--lm", "nowhere.arpa"], "--lm: no such file: nowhere.arpa"),
        (["--lm", __file__], r"LM_INVALID: \S+test_serve\.py: line \d+: .*: not an ARPA file"),
        (["--device", "cuda"], "--device is 'cuda'; accepted: cpu; "),
        (["--http-port", "8765", "--grpc-port", "8765"], "PORT_UNAVAILABLE: --http-port and --grpc-port are both 8765"),
        (["--lm", "OTHER_LM"], r"LM_INVALID: \S+: another vocabulary: of \d+ words, \d+ are not among the model's"),
        (["--lm", "OTHER_COMPILED"], r"LM_INVALID: \S+: another vocabulary; tokens that the model lacks: 'bird'"),
        (["--graph", __file__], r"GRAPH_INVALID: \S+test_serve\.py: cannot be read"),
        (["--graph", "OTHER_GRAPH"], r"GRAPH_INVALID: \S+: the graph is for a model of 5 tokens, the model has \d+; "),
        (["--cuda-graphs", "full_graph"], "CUDA graphs 'full_graph' are not possible on cpu"),
        (["--model", "MODEL", "--lm-weight", "0.3"], "lm_weight is 0.3, but there is no language model"),
        (["--language", "de-DE"], "SETTING_INVALID: language is 'de-DE', but the model has no language prompts"),
        (["--speakers", "MODEL"], r"CHECKPOINT_INVALID: \S+: not a bundle of a speaker model.* it is of a recognizer"),
        (["--model", "SPEAKERS"], r"CHECKPOINT_INVALID: \S+: not a bundle of a recognizer.* it is of a speaker model"),
        (["--speakers", "nowhere"], r"CHECKPOINT_INVALID: nowhere"),
        (["--speaker-streams", "5"], "--speaker-streams is 5, but there is no --speakers BUNDLE"),
    ],
)
def test_what_can_be_checked_first_is_rejected_at_once(
    bundled_model, speakers, busy_port, capsys, monkeypatch, tmp_path, arguments, message
):
    monkeypatch.delenv("PENSTOCK_MODEL", raising=False)
    monkeypatch.setattr(serve, "find_triton", lambda: TritonInstall(Path("tritonserver")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    other_lm = {"format": "penstock-ngram-lm", "version": "1", "tokens": '["bird"]'}
    save_file({"a": np.zeros(1)}, tmp_path / "lm.safetensors", other_lm)
    other_graph = {"format": "penstock-decoding-graph", "version": "1", "vocabulary_size": "5"}
    save_file({"a": np.zeros(1)}, tmp_path / "graph.safetensors", other_graph)
    known = {
        "MODEL": str(bundled_model), "BUSY": str(busy_port),
        "OTHER_LM": str(arpa_path("3")), "OTHER_COMPILED": str(tmp_path / "lm.safetensors"),
        "OTHER_GRAPH": str(tmp_path / "graph.safetensors"), "SPEAKERS": str(speakers),
    }  # fmt: skip
    ports = [f"--{name}-port=0" for name in Ports._fields]
    may_succeed_later = message.startswith(("PORT_UNAVAILABLE", "MODEL_NOT_FOUND"))
    status = 1 if may_succeed_later else serve.REJECTED
    started = time.process_time()
    assert main(["serve", *ports, *(known.get(argument, argument) for argument in arguments)]) == status
    assert time.process_time() - started < 1  # of the processor: a busy machine does not count
    code = "" if re.match("[A-Z_]+: ", message) else "SETTING_INVALID: "
    assert re.match(f"penstock: error: {code}{message}", capsys.readouterr().err)


@pytest.fixture
def launched(bundled_model, monkeypatch) -> list[ServerOptions]:
    """Options of the servers that the command would have started."""
    options = []
    monkeypatch.setattr(serve, "find_triton", lambda: TritonInstall(Path("tritonserver")))
    monkeypatch.setattr(serve, "serve_until_signal", lambda server, *_: options.append(server._options))
    for setting in ServeOptions.options():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("PENSTOCK_MODEL", str(bundled_model))
    for port in Ports._fields:
        monkeypatch.setenv(f"PENSTOCK_{port.upper()}_PORT", "0")
    return options


def test_without_a_model_the_bundled_one_is_served(launched, monkeypatch, capsys):
    monkeypatch.delenv("PENSTOCK_MODEL")
    assert main(["serve"]) == 0
    assert " server: no --model: using the bundled an4-rnnt-hybrid, a demo for " in capsys.readouterr().out
    settings = Settings.from_environment(launched[0].environment)
    assert settings.checkpoint.directory.samefile(ROOT / "models" / "an4-rnnt-hybrid")


@pytest.mark.parametrize("flags", [[], ["--listen", "0.0.0.0"]])
def test_open_ports_of_the_wheels_old_server_are_a_warning(launched, monkeypatch, capsys, flags):
    monkeypatch.setattr(serve, "find_triton", lambda: TritonInstall(Path("tritonserver"), Path("backends")))
    assert main(["serve", *flags]) == 0
    warning = "warning server: the Triton server of the pip wheel is an old version with published vulnerabilities"
    said = capsys.readouterr()
    assert (warning in said.err) == bool(flags)
    assert said.out.partition("\n")[0].endswith(" server: checking the settings and the model")


VALUES = {
    "context": "70,1", "max_streams": "5", "idle_seconds": "2.5", "device": "cpu", "threads": "2",
    "queue_delay_ms": "7",
    "lm_weight": "0.25", "beam_size": "2", "max_symbols": "4", "phrase_memory_mib": "64", "cuda_graphs": "no_graphs",
    "kernels": "torch",
}  # fmt: skip

ARPA = """\\data\\
ngram 1=3

\\1-grams:
-0.5 <s>
-0.5 </s>
-0.5 \u2581

\\end\\
"""


def test_every_variable_reaches_the_models_as_its_flag_does(launched, monkeypatch, bundled_model, tmp_path):
    (tmp_path / "lm.arpa").write_text(ARPA, encoding="utf-8")
    values = {**VALUES, "lm": str(tmp_path / "lm.arpa")}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert main(["serve", *flags, "--capture-beams"]) == 0
    monkeypatch.setenv("PENSTOCK_CAPTURE_BEAMS", "1")
    for name, value in values.items():
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", value)
    assert main(["serve"]) == 0
    by_flags, by_variables = (options.environment for options in launched)
    expected = {f"PENSTOCK_{name.upper()}": value for name, value in values.items()}
    expected |= {"PENSTOCK_MODEL": str(bundled_model), "PENSTOCK_CAPTURE_BEAMS": "True"}
    assert by_flags == by_variables
    assert by_flags.items() >= expected.items()


def test_variables_of_the_launcher_itself(launched, monkeypatch):
    assert main(["serve"]) == 0
    monkeypatch.setenv("PENSTOCK_LISTEN", "0.0.0.0")
    monkeypatch.setenv("PENSTOCK_DRAIN_SECONDS", "3")
    assert main(["serve"]) == 0
    assert main(["serve", "--listen", "127.0.0.1", "--drain-seconds", "4"]) == 0
    assert [(o.address, o.drain_s) for o in launched] == [("127.0.0.1", 8), ("0.0.0.0", 3), ("127.0.0.1", 4)]


def test_what_listen_replaces_names_it(launched, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--listen-on-all-interfaces"])
    assert capsys.readouterr().err.endswith("--listen-on-all-interfaces; the nearest is --listen\n")
    monkeypatch.setenv("PENSTOCK_LISTEN_ON_ALL_INTERFACES", "1")
    assert main(["serve"]) == serve.REJECTED
    assert "PENSTOCK_LISTEN_ON_ALL_INTERFACES is not known any more; use PENSTOCK_LISTEN" in capsys.readouterr().err
    monkeypatch.delenv("PENSTOCK_LISTEN_ON_ALL_INTERFACES")
    assert main(["serve", "--listen", "192.0.2.77"]) == serve.REJECTED
    assert not launched


def test_a_wrong_variable_is_rejected_by_its_name(launched, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_LM", "nowhere")
    assert main(["serve"]) == serve.REJECTED
    assert capsys.readouterr().err == "penstock: error: SETTING_INVALID: PENSTOCK_LM: no such file: nowhere\n"
    assert not launched


def test_an_unknown_variable_is_reported(launched, monkeypatch, capsys):
    for name in ("PENSTOCK_MAX_STREAM", "PENSTOCK_GATEWAY_KEY", "PENSTOCK_URL", "PENSTOCK_CACHE"):
        monkeypatch.setenv(name, "5")
    assert main(["serve"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        " warning server: the environment variable PENSTOCK_MAX_STREAM is not known and has no effect; "
        "is PENSTOCK_MAX_STREAMS meant?"
    )
    assert launched[0].environment["PENSTOCK_MAX_STREAMS"] == "64"


def test_a_speaker_model_is_served_with_as_many_streams(launched, speakers, monkeypatch, capsys):
    monkeypatch.chdir(speakers.parent)
    assert main(["serve", "--speakers", speakers.name, "--max-streams", "7"]) == 0
    assert main(["serve", "--speakers", speakers.name, "--speaker-streams", "3"]) == 0
    found = [Settings.from_environment(options.environment) for options in launched]
    assert [(Path(each.options.speakers), each.options.all_speaker_streams) for each in found] == [
        (speakers, 7),
        (speakers, 3),
    ]
    assert " server: speakers: speakers, at most 8 in a stream, 3 streams; weights " in capsys.readouterr().out


def test_help_says_what_each_flag_is(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "--context L,R attention context in encoder frames; LEFT,RIGHT, for example 70,6 "
        "(560 ms chunks if the model has them, else its first)" in text
    )
    assert all(setting.flag in text for setting in ServeOptions.options())


def test_memory_is_stated_and_a_model_that_does_not_fit_is_rejected(launched, capsys, monkeypatch):
    command = ["serve", "--device=cpu"]
    monkeypatch.setattr(serve, "available_memory_bytes", lambda: int(100.0 * 2**30))
    assert main(command) == 0
    output = capsys.readouterr()
    assert "memory: weights 20 MB, phrase lists up to 537 MB, a decoding step up to 4.1 MB" in output.out + output.err
    assert "streams may need" not in output.out + output.err
    monkeypatch.setattr(serve, "available_memory_bytes", lambda: int(1.3 * 2**30))
    assert main(command) == 0
    output = capsys.readouterr()
    assert re.search(r"64 streams may need \d\.\d GiB of memory, and 1\.3 GiB are available", output.out + output.err)
    monkeypatch.setattr(serve, "available_memory_bytes", lambda: int(0.2 * 2**30))
    assert main(command) == serve.REJECTED
    assert "the model needs 1.0 GiB of memory, and 0.2 GiB are available" in capsys.readouterr().err


def test_what_does_not_fit_on_a_device_is_rejected_by_its_parts(launched, capsys, monkeypatch):
    """Before anything is loaded: the device is a stand-in."""
    monkeypatch.setattr(serve, "check_device", lambda *_: None)
    free, asked = [int(80e9)], []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (free[0], int(80e9)))
    command = ["serve", "--device=cuda:1"]
    assert main(command) == 0
    free[0] = int(1e9)
    assert main(command) == serve.REJECTED
    error = capsys.readouterr().err
    assert re.search(
        r"SETTING_INVALID: the server needs about \d\.\d\d GB on cuda:1, where 1\.00 GB are free: "
        r"weights 0\.0\d GB, streams .*, phrases 0\.54 GB, .*; accepted: a lower --phrase-memory-mib",
        error,
    ), error
    assert asked == ["cuda:1"] * 2
    assert main([*command, "--precision=int8"]) == serve.REJECTED
    assert "SETTING_INVALID: precision 'int8' needs the CPU, not cuda:1; accepted: auto," in capsys.readouterr().err
