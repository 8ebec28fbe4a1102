"""The command `penstock` as a whole: what it prints when it is used wrongly, interrupted, or cannot write."""

import os
import re
import signal
import subprocess
import sys

import pytest
import soundfile

from penstock.cli import main
from penstock.cli.command_line import COMMANDS
from tests.helpers.golden import golden_pcm
from tests.helpers.interrupt import SILENT_ENDS, SLOW_IMPORT, start_interruptible

COMMAND = [sys.executable, "-m", "penstock.cli"]


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["transcribe", "--streams", "x"], ["transcribe", "--nonsense"]]
)
def test_an_error_of_usage_is_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert re.fullmatch("penstock( [a-z]+)?: error: .*\\n", capsys.readouterr().err)


def test_a_probe_imports_little():
    """A container runs it every few seconds: each of these packages costs more than the probe."""
    code = "import sys; old = set(sys.modules); from penstock.cli import main; main(['health', '--url', 'localhost:1'])"
    command = [sys.executable, "-c", f"{code}; print(*(set(sys.modules) - old))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith("unhealthy: localhost:1: ")
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages - sys.stdlib_module_names == {"penstock", "penstock_common"}
    assert not packages & {"asyncio", "dataclasses", "email", "http", "inspect", "logging", "ssl"}


def test_the_help_lists_each_command_with_its_purpose(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, (_, about) in COMMANDS.items():
        assert f" {name} {about}" in text
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: penstock {name} ")


def test_ctrl_c_during_the_imports_is_silent(tmp_path):
    (tmp_path / "numpy.py").write_text(SLOW_IMPORT)
    process = start_interruptible([*COMMAND, "transcribe", "--help"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode in SILENT_ENDS


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_disk_is_one_line(golden_bundle, tmp_path, monkeypatch, capsys, arguments):
    audio = tmp_path / "short.wav"
    soundfile.write(audio, golden_pcm("short").numpy(), 16_000)
    model = golden_bundle("rnnt_hybrid").directory
    command = ["transcribe", "--model", str(model), "--context", "6,1", str(audio), *arguments]
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(command) == 1
    assert capsys.readouterr().err == "penstock: error: OUTPUT_FAILED: standard output: no space left on device\n"


def test_help_that_cannot_be_written_fails():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "penstock: error: OUTPUT_FAILED: standard output: no space left on device\n"


def test_closed_standard_streams_are_empty_ones(tmp_path, uncompiled):
    command = ["/bin/sh", "-c", 'exec "$@" <&- >&-', "sh", *COMMAND, "transcribe", "-", str(tmp_path / "none.wav")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert errors == [
        "penstock: error: AUDIO_INVALID: -: has no audio",
        f"penstock: error: AUDIO_INVALID: {tmp_path}/none.wav: no such file",
    ]


@pytest.mark.parametrize(("flag", "hint"), [("--max-stream", "; the nearest is --max-streams"), ("--zzz", "")])
def test_flags_are_written_in_full(flag, hint, capsys):
    with pytest.raises(SystemExit):
        main(["serve", flag, "5"])
    assert capsys.readouterr().err == f"penstock serve: error: unrecognized arguments: {flag} 5{hint}\n"
