"""Training of heads on frozen frames, the bundles that they become, and the command from recordings to a bundle."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.adaptation.ilm import IlmTraining
from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair, TransducerConfig
from penstock.recognizer import StreamingRecognizer
from recipes.training import train_head as command
from recipes.training.encoded import EncodedUtterance, collate, draw_batches
from recipes.training.heads import FactorizedHead, StandardHead, TransducerHead, write_head_bundle
from recipes.training.train_head import HeadTraining, train_head, transducer_loss_of
from tests.helpers.random_models import random_checkpoint

LABELS, D_MODEL = 4, 6
KINDS = {"standard": (StandardHead, "relu"), "factorized": (FactorizedHead, "tanh")}


def _head(kind: str) -> TransducerHead:
    torch.manual_seed(0)
    made, activation = KINDS[kind]
    return made(TransducerConfig(LABELS, 8, 1, 8, activation, (), kind=kind), D_MODEL, dropout=0.05)


def _utterances(count: int) -> list[EncodedUtterance]:
    """Each label is loud in its own place for one of three frames."""
    random = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        labels = torch.randint(0, LABELS, (int(torch.randint(0, 4, (1,), generator=random)),), generator=random)
        frames = 0.1 * torch.randn(3 * len(labels) + 2, D_MODEL, generator=random)
        for place, label in enumerate(labels):
            frames[3 * place + 1, label] += 3.0
        found.append(EncodedUtterance(frames, labels.tolist(), ""))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_language_model_keeps_every_bit(kind):
    head = _head(kind)
    before = head.tensors()
    batches = draw_batches(_utterances(64), 16, np.random.default_rng(0))
    values: list[float] = []
    training = HeadTraining(80, 3e-2)
    train_head(head, batches, transducer_loss_of(head), training, lambda step, value: values.append(value))
    assert len(values) == 80 and sum(values[-5:]) < 0.4 * sum(values[:5])
    assert not head.training
    for name, tensor in head.tensors().items():
        is_frozen = kind == "factorized" and name.startswith("predictor.")
        assert torch.equal(tensor, before[name]) == is_frozen, name


def test_a_language_model_is_trained_with_its_head():
    head = _head("factorized")
    utterances = [each._replace(labels=[k % 2 for k in range(len(each.labels))]) for each in _utterances(64)]
    batch = collate(utterances[:16])

    def parts() -> tuple[torch.Tensor, torch.Tensor]:
        by_equation_3 = -head.ilm.log_probability(batch.labels, batch.label_counts)
        return head.losses(batch.encoded, batch.frame_counts, batch.labels, batch.label_counts), by_equation_3

    head.eval()
    by_equation_1, before = parts()
    expected = ((by_equation_1 + 0.5 * before) / (batch.label_counts + 1).sqrt()).mean()
    loss = transducer_loss_of(head, 0.5)
    assert float(loss(batch).detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    batches = draw_batches(utterances, 16, np.random.default_rng(0))
    train_head(head, batches, loss, HeadTraining(40, 3e-2, trains_ilm=True))
    assert float(parts()[1].sum().detach()) < 0.3 * float(before.sum().detach())  # the labels alternate
    with pytest.raises(ValueError, match=r"ilm_weight: 0\.5; accepted: 0"):
        transducer_loss_of(_head("standard"), 0.5)


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped():
    head = _head("standard")
    before = head.tensors()
    batches = draw_batches(_utterances(8), 8, np.random.default_rng(0))
    loss = transducer_loss_of(head)
    train_head(head, batches, lambda batch: loss(batch) * float("inf"), HeadTraining(2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.tensors().items())


def test_a_bundle_gets_the_head_and_keeps_the_rest(tmp_path: Path):
    encoder = random_checkpoint(tmp_path, 0)
    transducer, d_model = encoder.config.transducer, encoder.config.encoder.d_model
    config = TransducerConfig(transducer.vocabulary_size, 5, 1, 7, "tanh", (), kind="factorized")
    head = FactorizedHead(config, d_model)
    pairs = {"beam_pair": IlmPair(0.6, 0.4), "greedy_pair": IlmPair(1.0, 0.2)}
    made = write_head_bundle(tmp_path / "made", encoder, head, {"file": "x"}, **pairs)
    made.verify()
    assert made.config.transducer.ilm_beam == IlmPair(0.6, 0.4)
    assert made.config.transducer.ilm_greedy == IlmPair(1.0, 0.2)
    assert made.config.encoder == encoder.config.encoder and made.source == {"file": "x"}
    kept = encoder.tensors("features.", "encoder.")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in made.tensors("features.", "encoder.").items())
    assert all(torch.equal(tensor, made.tensors()[name]) for name, tensor in head.tensors().items())
    with pytest.raises(CheckpointError, match="is a bundle"):
        write_head_bundle(tmp_path / "made", encoder, head, {})
    half = write_head_bundle(tmp_path / "made", encoder, head, {}, half=True, replace=True)
    assert torch.equal(half.tensors()["acoustic.weight"], head.acoustic.weight.half().float())
    assert torch.equal(half.tensors()["features.window"], kept["features.window"])


def test_a_standard_head_becomes_a_bundle_without_pairs(tmp_path: Path):
    encoder = random_checkpoint(tmp_path, 1)
    head = StandardHead(encoder.config.transducer, encoder.config.encoder.d_model)
    head.load_tensors(encoder.tensors(*head.prefixes))
    made = write_head_bundle(tmp_path / "made", encoder, head, encoder.source)
    names = sorted(path.name for path in made.directory.iterdir())
    for name in names:
        assert (made.directory / name).read_bytes() == (encoder.directory / name).read_bytes(), name


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
    monkeypatch.setattr(command, "_EFFECTS", 3)
    monkeypatch.setattr(command, "IlmTraining", partial(IlmTraining, steps=20))
    monkeypatch.setattr(command, "PAIRS", (IlmPair(1.0, 0.0), IlmPair(0.6, 0.4)))
    first, second = tmp_path / "first", tmp_path / "second"
    assert command.main([*arguments, "--epochs", "2", "--batch", "2", "--out", str(first)]) == 0
    assert "alpha 0.6 beta 0.4" in capsys.readouterr().out
    more = ["--init", str(first), "--epochs", "0", "--pair", "0.6,0.4", "--mwer", "2", "--half", "--out", str(second)]
    assert command.main([*arguments, *more]) == 0
    made, trained = Checkpoint(first), Checkpoint(second)
    assert made.config.transducer.ilm_greedy == IlmPair(1.0, 0.0)
    assert trained.config.transducer.ilm_beam == trained.config.transducer.ilm_greedy == IlmPair(0.6, 0.4)
    assert "--mwer" not in made.source["command"] and made.source["file"] == encoder.directory.name
    joint = ["--init", str(first), "--epochs", "1", "--batch", "2", "--pair", "1,0", "--ilm-weight", "0.5"]
    assert command.main([*arguments, *joint, "--out", str(tmp_path / "joint")]) == 0
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
    assert command.main([*arguments, *more, "--out", str(tmp_path / "out")]) == 0
    config = Checkpoint(tmp_path / "out").config
    assert config == encoder.config


def test_recordings_of_one_speaker_are_rejected(encoder, tmp_path, capsys):
    """Else the speaker is held out, and a head that nothing was learned by is written."""
    lines = MANIFEST.read_text(encoding="utf-8").splitlines()[:1]
    entry = json.loads(lines[0]) | {"audio_filepath": str(MANIFEST.parent / json.loads(lines[0])["audio_filepath"])}
    (tmp_path / "one.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    chosen = ["--model", str(encoder.directory), "--train", str(tmp_path / "one.jsonl"), "--kind", "standard"]
    assert command.main([*chosen, "--out", str(tmp_path / "out")]) == 1
    assert "CORPUS_INVALID: --train: all recordings are of one speaker; accepted: of several" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_head_for_another_encoder_is_named(arguments, tmp_path, capsys):
    bundled = ROOT / "models" / "an4-ft"
    assert command.main([*arguments, "--init", str(bundled), "--out", str(tmp_path / "out")]) == 1
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
        command.main([*arguments, "--out", str(tmp_path / "out"), f"{option}={value}"])
    error = capsys.readouterr().err
    assert f"argument {option}: '{value}'; accepted: " in error and accepted in error
