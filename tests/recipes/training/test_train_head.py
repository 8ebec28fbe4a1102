"""The script from recordings to a bundle, on a few utterances."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from penstock.adaptation.ilm import IlmTraining
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair
from penstock.recognizer import StreamingRecognizer
from recipes.training import train_head
from tests.helpers.random_models import random_checkpoint

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Checkpoint:
    return random_checkpoint(tmp_path_factory.mktemp("encoder"), 0)


@pytest.fixture(scope="module")
def arguments(encoder, tmp_path_factory) -> list[str]:
    frames = tmp_path_factory.mktemp("train") / "frames.pt"
    common = {"--model": encoder.directory, "--train": MANIFEST, "--frames": frames, "--copies": 0}
    return [str(each) for pair in common.items() for each in pair]


def test_from_recordings_to_a_bundle_and_on_by_mwer(encoder, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_head, "_EFFECTS", 3)
    monkeypatch.setattr(train_head, "IlmTraining", partial(IlmTraining, steps=20))
    monkeypatch.setattr(train_head, "PAIRS", (IlmPair(1.0, 0.0), IlmPair(0.6, 0.4)))
    first, second = tmp_path / "first", tmp_path / "second"
    assert train_head.main([*arguments, "--epochs", "2", "--batch", "2", "--out", str(first)]) == 0
    assert "alpha 0.6 beta 0.4" in capsys.readouterr().out
    more = ["--init", str(first), "--epochs", "0", "--pair", "0.6,0.4", "--mwer", "2", "--half", "--out", str(second)]
    assert train_head.main([*arguments, *more]) == 0
    made, trained = Checkpoint(first), Checkpoint(second)
    assert made.config.transducer.ilm_greedy == IlmPair(1.0, 0.0)
    assert trained.config.transducer.ilm_beam == trained.config.transducer.ilm_greedy == IlmPair(0.6, 0.4)
    assert "--mwer" not in made.source["command"] and made.source["file"] == encoder.directory.name
    joint = ["--init", str(first), "--epochs", "1", "--batch", "2", "--pair", "1,0", "--ilm-weight", "0.5"]
    assert train_head.main([*arguments, *joint, "--out", str(tmp_path / "joint")]) == 0
    bundles = (made, trained, Checkpoint(tmp_path / "joint"))
    ilm, after_mwer, after_joint = (bundle.tensors("predictor.") for bundle in bundles)
    assert all(torch.equal(tensor.half().float(), after_mwer[name]) for name, tensor in ilm.items())
    assert not any(torch.equal(tensor, after_joint[name]) for name, tensor in ilm.items())
    kept = encoder.tensors("encoder.")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in made.tensors("encoder.").items())
    with StreamingRecognizer(second).open_stream() as stream:
        stream.finish(torch.zeros(16_000).numpy())


def test_a_standard_head_is_trained_on(encoder, arguments, tmp_path):
    more = ["--kind", "standard", "--init", str(encoder.directory), "--epochs", "1", "--batch", "4"]
    assert train_head.main([*arguments, *more, "--out", str(tmp_path / "out")]) == 0
    config = Checkpoint(tmp_path / "out").config
    assert config == encoder.config


def test_recordings_of_one_speaker_are_rejected(encoder, tmp_path, capsys):
    """Else the speaker is held out, and a head that nothing was learned by is written."""
    lines = MANIFEST.read_text(encoding="utf-8").splitlines()[:1]
    entry = json.loads(lines[0]) | {"audio_filepath": str(MANIFEST.parent / json.loads(lines[0])["audio_filepath"])}
    (tmp_path / "one.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    command = ["--model", str(encoder.directory), "--train", str(tmp_path / "one.jsonl"), "--kind", "standard"]
    assert train_head.main([*command, "--out", str(tmp_path / "out")]) == 1
    assert "CORPUS_INVALID: --train: all recordings are of one speaker; accepted: of several" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_head_for_another_encoder_is_named(arguments, tmp_path, capsys):
    bundled = ROOT / "models" / "an4-ft"
    assert train_head.main([*arguments, "--init", str(bundled), "--out", str(tmp_path / "out")]) == 1
    assert "--init: the head is for frames of width 144 and 64 labels; accepted: 16 and 48" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--pair", "nan,0", "from 0 to 2 and from 0 to 10"),
        ("--pair", "0.6", "two numbers"),
        ("--pair", "0.6,11", "from 0 to 10"),
        ("--pair", "1,2,3", "two numbers"),
        ("--context", "70", "two numbers of encoder frames"),
        ("--context", "x,6", "two numbers of encoder frames"),
        ("--ilm-weight", "-1", "a number from 0"),
        ("--ilm-weight", "x", "a number from 0"),
    ],
)
def test_wrong_numbers_are_named(arguments, tmp_path, capsys, option, value, accepted):
    with pytest.raises(SystemExit):
        train_head.main([*arguments, "--out", str(tmp_path / "out"), f"{option}={value}"])
    error = capsys.readouterr().err
    assert f"argument {option}: '{value}'; accepted: " in error and accepted in error
