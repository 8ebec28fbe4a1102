"""Commands of the pages that need neither a server nor a download: they run as printed, and print what is there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.golden import GOLDEN
from tests.helpers.nemo_files import changed_state

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "tests/data/an4/flac/an395-mjwl-b.flac"
COMMANDS = {
    "README.md": ("transcribe yours.m4a", "evaluate"),
    "docs/evaluation.md": ("evaluate --model models/an4-rnnt-hybrid",),
    "docs/fine_tuning.md": (
        "import base.nemo",
        "evaluate --model base",
        "import tuned.nemo",
        "evaluate --model tuned",
        "compare",
    ),
    "docs/language_model.md": ("lm build", "lm compile", "evaluate"),
    "docs/transcription.md": ("transcribe --model my-model",),
    "docs/wfst.md": ("lm build --words", "graph build", "graph info"),
    "models/an4-offline/README.md": ("transcribe",),
}
"""Beginnings of each page's commands, in their order; of several alike the first."""
_VOLATILE = re.compile(r" \d{4}-\d\d-\d\d \d\d:\d\d UTC|, penstock [\d.]+|^.* GiB; ", re.MULTILINE)

pytestmark = pytest.mark.nightly


def blocks(page: str) -> list[str]:
    return re.findall(r"(?ms)^```\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """With the files that the pages speak of."""
    for name in ("tests", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my-model").symlink_to(ROOT / "models" / "an4-rnnt-hybrid")
    call = tmp_path / "recordings" / "day" / "call.flac"
    call.parent.mkdir(parents=True)
    for path in (call, tmp_path / "yours.m4a"):
        shutil.copy(RECORDING, path)
    manifest = (ROOT / "tests/data/an4/manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in manifest]
    for row in rows:
        row["audio_filepath"] = str(ROOT / "tests/data/an4" / row["audio_filepath"])
    (tmp_path / "dev.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "test.jsonl").symlink_to(tmp_path / "dev.jsonl")
    shutil.copy(GOLDEN / "rnnt_hybrid.nemo", tmp_path / "base.nemo")
    changed_state(tmp_path / "tuned.nemo", lambda state: state["joint.enc.bias"].add_(0.5))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{row['text']}\n" for row in rows))
    return tmp_path


def run(page: str, folder: Path) -> list[str]:
    """The output of each of the page's commands."""
    lines = [line.partition(" #")[0].strip() for block in blocks(page) for line in block.splitlines()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    outputs = []
    for begin in COMMANDS[page]:
        command = next(line for line in lines if line.startswith(f"penstock {begin}"))
        words = ["models/an4-rnnt-hybrid" if word == "MODEL" else word for word in shlex.split(command)[1:]]
        program = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())", *words]
        ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{page}: {command}: {ended.stderr}"
        outputs.append(ended.stdout)
    return outputs


def stable(text: str) -> list[str]:
    """Without the date, the version and the machine."""
    return [line.rstrip() for line in _VOLATILE.sub("", text).splitlines() if line.strip()]


def test_readme(folder):
    transcript, report = run("README.md", folder)
    assert transcript == "enter one oh four\n"
    assert "| greedy |" in re.sub(" +", " ", report) and "| alsd |" in re.sub(" +", " ", report)
    assert "<svg" in (folder / "report.html").read_text(encoding="utf-8")


def test_evaluation(folder):
    (output,) = run("docs/evaluation.md", folder)
    printed = blocks("docs/evaluation.md")[1]
    assert stable(output) == stable(printed)


def test_fine_tuning(folder):
    *_, compared = run("docs/fine_tuning.md", folder)
    assert "6 utterances with speech, 34 words" in compared and "95 % interval" in compared


def test_language_model(folder):
    built, compiled, evaluated = run("docs/language_model.md", folder)
    assert built.startswith("lm.arpa: 6 sentences") and "perplexity" in built
    assert compiled.startswith("lm.safetensors")
    assert "alsd:beam=4,lm=lm.arpa,lm_weight=0.1" in evaluated


def test_transcription(folder):
    run("docs/transcription.md", folder)
    found = {path.name: path.read_text(encoding="utf-8") for path in (folder / "texts" / "day").iterdir()}
    assert sorted(found) == ["call.json", "call.srt", "call.txt"]
    assert found["call.txt"] == "enter one oh four\n" and json.loads(found["call.json"])["text"] == "enter one oh four"
    assert "enter one oh four" in found["call.srt"]


def test_decoding_graphs(folder):
    pytest.importorskip("kaldifst", reason="extra `graph`")
    built, _, info = run("docs/wfst.md", folder)
    assert built.startswith("words.arpa: 6 sentences") and "words: 24" in info


def test_the_offline_model(folder):
    (output,) = run("models/an4-offline/README.md", folder)
    assert len(output.split()) > 1
