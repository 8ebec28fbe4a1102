"""The commands of all recipes, each run on the recordings of the repository, too shortly to learn anything."""

import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from penstock.model.bundle import Checkpoint
from penstock.recognizer import StreamingRecognizer
from recipes.training.batches import read_recordings

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"


def run(command: str, *arguments: object) -> str:
    """Runs `recipes.COMMAND`; returns what it printed."""
    words = [sys.executable, "-m", f"recipes.{command}", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def write_release(folder: Path) -> None:
    """Writes the recordings as AN4's folders have them."""
    (folder / "etc").mkdir(parents=True)
    recordings = read_recordings(MANIFEST)
    for part, chosen in {"train": recordings[:3], "test": recordings[3:]}.items():
        names = {f"{part}/{each.speaker}/{part}{number}": each for number, each in enumerate(chosen)}
        lines = [f"<s> {' '.join(each.words).upper()} </s> ({Path(name).name})" for name, each in names.items()]
        (folder / "etc" / f"an4_{part}.fileids").write_text("\n".join(names) + "\n")
        (folder / "etc" / f"an4_{part}.transcription").write_text("\n".join(lines) + "\n")
        for name, each in names.items():
            path = folder / "wav" / f"{name}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, each.samples, 16_000)


def test_an4(tmp_path):
    """Training itself needs NeMo: an4/test_train.py."""
    write_release(tmp_path / "release")
    run("an4.prepare", tmp_path / "release", "--dev-speakers", "miry", "--out", tmp_path / "an4")
    made = [each for part in ("train", "dev", "test") for each in read_recordings(tmp_path / "an4" / f"{part}.jsonl")]
    expected = [(each.speaker, each.words) for each in read_recordings(MANIFEST)]
    assert [(each.speaker, each.words) for each in made] == expected


def test_a_head_and_mwer(tmp_path):
    model, first, second = ROOT / "models" / "an4-rnnt-hybrid", tmp_path / "first", tmp_path / "second"
    shared = ("--model", model, "--train", MANIFEST, "--context", "70,6", "--frames", tmp_path / "frames.pt",
              "--copies", "0", "--pair", "0.6,0.4")  # fmt: skip
    run("training.train_head", *shared, "--epochs", "2", "--batch", "2", "--out", first)
    run("training.train_head", *shared, "--init", first, "--epochs", "0", "--mwer", "2", "--out", second)
    before, after = (Checkpoint(bundle).tensors("predictor.", "acoustic.") for bundle in (first, second))
    changed = {name.split(".")[0] for name, tensor in after.items() if not tensor.equal(before[name])}
    assert changed == {"acoustic"}
    with StreamingRecognizer(second).open_stream() as stream:
        assert stream.finish(read_recordings(MANIFEST)[0].samples).is_final
