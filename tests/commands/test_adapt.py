"""`penstock adapt`: what it changes and prints, that nothing is half written, and errors that name what is wrong."""

import io
import json
import random
import re
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from penstock.adaptation import ilm as ilm_module
from penstock.cli import main
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.config import FACTORIZED
from tests.helpers.random_models import random_checkpoint

QUICK = ("--steps", "40")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("model"), 3, kind=FACTORIZED).directory


def sentences(words: str, count: int = 60, seed: int = 0) -> str:
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(words.split(), k=draw.randint(1, 5))) + "\n" for _ in range(count))


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "domain.txt"
    path.write_text(sentences("one two three six"), encoding="utf-8")
    return path


def adapt(*arguments: object) -> int:
    return main(["adapt", *map(str, arguments)])


def perplexities(out: str) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r"perplexity (\S+) before, (\S+) after", out)]


def test_only_the_internal_language_model_changes(model, text, tmp_path, capsys):
    out = tmp_path / "out"
    assert adapt("--model", model, "--text", text, "--out", out, *QUICK) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(rf"{out}: adapted to 54 sentences, step \d+ of 40", lines[0])
    assert lines[1].endswith("6 held-out sentences, " + str(text))
    assert lines[2].endswith("400 held-out sentences, sampled from the model")
    (new_before, new_after), (old_before, _) = perplexities(captured.out)
    assert new_after < 0.9 * new_before
    assert old_before < new_before  # its own sentences
    assert captured.err.splitlines()[0].startswith("step 2 of 40: perplexity ")
    before, after = load_file(model / "weights.safetensors"), load_file(out / "weights.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) != name.startswith("predictor."), name
    assert (out / "tokenizer.model").read_bytes() == (model / "tokenizer.model").read_bytes()
    first, second = (json.loads((path / "config.json").read_text()) for path in (model, out))
    assert first["model"] == second["model"]
    assert second["source"] == {
        "adapted_from_config_sha256": sha256((model / "config.json").read_bytes()).hexdigest(),
        "adapted_text_sha256": sha256(text.read_bytes()).hexdigest(),
    }
    Checkpoint(out)


def test_kept_and_held_out_text_and_standard_input(model, text, tmp_path, capsys, monkeypatch):
    keep, heldout, out = tmp_path / "keep.txt", tmp_path / "heldout.txt", tmp_path / "out"
    keep.write_text(sentences("yes no stop", 40), encoding="utf-8")
    heldout.write_text(sentences("one two three six", 5, seed=1), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    choices = ("--keep", keep, "--heldout", heldout)
    assert adapt("--model", model, "--text", "-", "--out", out, *choices, *QUICK) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: adapted to 60 sentences, step ")
    assert lines[1].endswith(f"5 held-out sentences, {heldout}")
    assert lines[2].endswith(f"4 held-out sentences, {keep}")
    (_, _), (old_before, old_after) = perplexities("\n".join(lines))
    assert old_after < old_before  # it was random: the kept text is new to it, too
    source = Checkpoint(out).source
    assert {name: source[f"adapted_{name}_sha256"] for name in ("text", "keep", "heldout")} == {
        "text": sha256(text.read_bytes()).hexdigest(),
        "keep": sha256(keep.read_bytes()).hexdigest(),
        "heldout": sha256(heldout.read_bytes()).hexdigest(),
    }


def test_the_seed_decides_and_a_bundle_is_replaced_with_force(model, text, tmp_path, capsys):
    outs = [tmp_path / name for name in ("a", "b", "c")]
    for out, seed in zip(outs, (1, 1, 2), strict=True):
        adapt("--model", model, "--text", text, "--out", out, "--seed", seed, *QUICK)
    weights = [load_file(out / "weights.safetensors")["predictor.output.weight"] for out in outs]
    torch.testing.assert_close(weights[0], weights[1], atol=1e-3, rtol=0)
    assert (weights[0] - weights[2]).abs().max() > 0.01
    (outs[0] / "README.md").write_text("of the old weights")
    (outs[0] / "phrases.txt").write_text("mine")
    capsys.readouterr()
    again = ("--model", outs[0], "--text", text, "--out", outs[0], "--steps", 60, "--seed", 4)
    assert adapt(*again) == 1
    assert "CHECKPOINT_INVALID" in capsys.readouterr().err
    first = sha256((outs[0] / "config.json").read_bytes()).hexdigest()
    assert adapt(*again, "--force") == 0
    assert Checkpoint(outs[0]).source["adapted_from_config_sha256"] == first
    assert not (outs[0] / "README.md").exists()
    assert (outs[0] / "phrases.txt").read_text() == "mine"


def write_again(model, directory, tensors) -> None:
    source = Checkpoint(model)
    write_checkpoint(directory, source.config, tensors, source.tokenizer_path.read_bytes(), {})


def test_float16_stays_float16_and_is_what_was_measured(model, text, tmp_path, capsys):
    half, out = tmp_path / "half", tmp_path / "out"
    tensors = load_file(model / "weights.safetensors")
    write_again(model, half, {n: t if n.startswith("features.") else t.half() for n, t in tensors.items()})
    heldout = ("--heldout", text)
    assert adapt("--model", half, "--text", text, "--out", out, *heldout, *QUICK) == 0
    before, after = load_file(half / "weights.safetensors"), load_file(out / "weights.safetensors")
    assert {name: t.dtype for name, t in before.items()} == {name: t.dtype for name, t in after.items()}
    assert all(torch.equal(after[n], t) for n, t in before.items() if not n.startswith("predictor."))
    from penstock.scoring.ngram.estimation.text import TextTokenizer

    read = list(TextTokenizer(out / "tokenizer.model").read([str(text)]))
    stored = ilm_module.InternalLm.from_tensors({name: t.float() for name, t in after.items()})
    printed = perplexities(capsys.readouterr().out)[0][1]
    assert printed == pytest.approx(ilm_module.perplexity(stored, read), rel=1e-3)


def test_a_killed_command_leaves_nothing(model, text, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    command = [sys.executable, "-m", "penstock.cli", "adapt", "--model", model, "--text", text, "--out", place / "out"]
    with subprocess.Popen([*map(str, command), "--steps", "400"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith("step 20 of 400: perplexity ")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, ["--steps", "0"], "SETTING_INVALID: --steps is 0, expected a positive number"),
        (None, ["--device", "tpu"], "SETTING_INVALID: --device is 'tpu'; accepted: cpu"),
        (None, ["--keep", "gone.txt"], "CORPUS_INVALID: gone.txt: No such file"),
        (b"", [], "domain.txt: there is no text"),
        (b"one\ntw\xff\n", [], "domain.txt: line 2: not UTF-8"),
        ("雪 国\n".encode() * 20, [], "domain.txt: no sentence has a token that the model's tokenizer knows: does the"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_written(model, text, tmp_path, capsys, content, arguments, message):
    if content is not None:
        text.write_bytes(content)
    assert adapt("--model", model, "--text", text, "--out", tmp_path / "out", *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("penstock: error: ")
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [text]


def test_a_model_without_an_internal_language_model_is_rejected(bundled_model, text, tmp_path, capsys):
    assert adapt("--model", bundled_model, "--text", text, "--out", tmp_path / "out") == 1
    assert capsys.readouterr().err == (
        f"penstock: error: CHECKPOINT_INVALID: {bundled_model}: has no internal language model (RNN-T + CTC); "
        "accepted: a factorized transducer. For this model use penstock lm build\n"
    )
    assert adapt("--text", text, "--out", tmp_path / "out") == 1
    assert "SETTING_INVALID: --model is missing" in capsys.readouterr().err


def test_a_place_that_is_not_empty_is_rejected_before_the_work(model, text, tmp_path, capsys):
    text.write_bytes(b"\xff")  # would be an error, too, if it were read
    assert adapt("--model", model, "--text", text, "--out", tmp_path) == 1
    assert f"CHECKPOINT_INVALID: {tmp_path}: is not empty" in capsys.readouterr().err
    assert adapt("--model", model, "--text", text, "--out", text / "deep" / "out") == 1
    assert f"{text}/deep/out: cannot be written; accepted: a directory below a writable" in capsys.readouterr().err
    assert adapt("--model", model, "--text", text, "--out", tmp_path / ("a" * 300)) == 1
    assert "a: cannot be written: File name too long" in capsys.readouterr().err


def test_a_perplexity_that_does_not_improve_is_an_error(model, text, tmp_path, capsys):
    heldout = tmp_path / "heldout.txt"
    heldout.write_text(sentences("yes no stop go left right", 20), encoding="utf-8")
    first, second = tmp_path / "first", tmp_path / "second"
    adapt("--model", model, "--text", heldout, "--out", first, "--steps", 200)
    capsys.readouterr()
    assert adapt("--model", first, "--text", text, "--heldout", heldout, "--out", second, *QUICK) == 1
    assert re.search(
        r"the held-out text, \S+, did not improve in 40 steps; nothing is written", capsys.readouterr().err
    )
    assert not second.exists()
