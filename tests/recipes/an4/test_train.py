"""Training by the recipe; the oracle's environment has NeMo."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf

from penstock import OfflineRecognizer
from penstock.model.bundle import Checkpoint
from penstock.model.config import TransducerConfig
from penstock.model.nemo.config import read_nemo_config
from penstock.model.nemo.importer import import_nemo
from recipes.an4.demo_model import DemoModelConfig, build_model, train_tokenizer
from recipes.an4.train import main
from recipes.training.batches import Batch
from recipes.training.heads import StandardHead
from recipes.training.trainer import Trainer, TrainerConfig

pytestmark = pytest.mark.oracle
ROOT = Path(__file__).parents[3]
MODELS = ROOT / "models"
MANIFEST = str(ROOT / "tests" / "data" / "an4" / "manifest.jsonl")
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12)


def train(out: Path, monkeypatch, *arguments: str) -> dict:
    """Six steps on the recordings of the repository, resumed after three; the last point of the curve."""
    pytest.importorskip("pocketsphinx", reason="extra `train`")
    command = ["train", "--synthetic", "0", "--batch-s", "8", "--train", MANIFEST, "--out", str(out), *arguments]
    for steps in ("3", "6"):
        monkeypatch.setattr(sys, "argv", [*command, "--steps", steps])
        main()
    point = json.loads((out / "curve.jsonl").read_text().splitlines()[-1])
    assert point["step"] == 6
    return point


def test_training_from_the_shipped_bundle(tmp_path, monkeypatch):
    shipped = MODELS / "an4-rnnt-hybrid"
    options = ("--init", str(shipped), "--models", "rnnt", "--learning-rate", "1e-5")
    train(tmp_path, monkeypatch, *options)
    made = import_nemo(tmp_path / "rnnt.nemo", tmp_path / "bundle").tensors()
    shipped = Checkpoint(shipped).tensors()
    changed = {name for name, tensor in made.items() if not torch.equal(tensor, shipped[name])}
    assert {name.split(".")[0] for name in changed} == {"encoder", "predictor", "joint", "ctc"}
    assert all(float((made[name] - shipped[name].float()).abs().max()) < 1e-3 for name in changed)
    train(tmp_path, monkeypatch, *options, "--keep", "1")
    kept = import_nemo(tmp_path / "rnnt.nemo", tmp_path / "kept").tensors()
    for name in changed:
        torch.testing.assert_close(kept[name], shipped[name].float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("init", ["an4-rnnt-hybrid", "an4-offline"])
def test_training_an_offline_model_from_a_bundle(init, tmp_path, monkeypatch):
    options = ("--offline", "--padded", "0.5", "--validation", MANIFEST, "--learning-rate", "1e-4")
    assert "WER tdt [-1,-1]" in train(tmp_path, monkeypatch, "--init", str(MODELS / init), *options)
    made = import_nemo(tmp_path / "tdt.nemo", tmp_path / "bundle")
    config, shipped = made.config, Checkpoint(MODELS / init)
    assert config.encoder.is_offline and config.features.is_normalized and not config.encoder.has_conv_layer_norm
    assert config.transducer.tdt_durations == (0, 1, 2, 3, 4) and config.ctc is not None
    found, start = made.tensors(), shipped.tensors()
    name = "encoder.layers.0.feed_forward1.up.weight"
    assert 0 < float((found[name] - start[name].float()).abs().max()) < 1e-2
    assert OfflineRecognizer(made.directory).transcribe([np.zeros(16000, np.float32)])[0].is_final


def batch() -> Batch:
    mel = torch.randn(3, 80, 160, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[1, 2, 3], [4, 2, 0], [0, 0, 0]])
    return Batch(mel, torch.tensor([160, 130, 90]), labels, torch.tensor([3, 2, 0]))


def tied_head(model: torch.nn.Module, config: TransducerConfig, d_model: int) -> StandardHead:
    """A head whose weights are the very parameters of `model`'s predictor and joint, gradients included."""
    head = StandardHead(config, d_model)
    head.predictor["embedding"] = model.decoder.prediction["embed"]
    for name, weight in model.decoder.prediction["dec_rnn"].lstm.named_parameters():
        setattr(head.predictor["lstm"], name, weight)
    head.joint.update({"encoder": model.joint.enc, "predictor": model.joint.pred, "output": model.joint.joint_net[-1]})
    return head


def test_the_head_has_the_models_loss_and_gradient(tmp_path):
    tokenizer = train_tokenizer(["one two three four one one", "five six seven one"], tmp_path / "tokenizer", 40)
    torch.manual_seed(0)
    model = build_model(dataclasses.replace(SMALL, predictor_dropout=0.0), tokenizer).eval()
    config = read_nemo_config(OmegaConf.to_container(model.cfg, resolve=True)).model
    head = tied_head(model, config.transducer, config.encoder.d_model)
    trainer = Trainer({"rnnt": model}, {"rnnt": ()}, TrainerConfig(joint_dropout=0.0))
    trainer.module.eval()

    def tied_loss() -> torch.Tensor:
        mel, mel_counts, labels, counts, _ = batch()
        encoded, frames = model.encoder(audio_signal=mel, length=mel_counts)
        return (head.losses(encoded.transpose(1, 2), frames, labels, counts) / (counts + 1).sqrt()).mean()

    weights = [*model.encoder.parameters(), *model.decoder.parameters(), *model.joint.parameters()]
    found = []
    for loss_of in (lambda: trainer.losses(batch(), "rnnt")["rnnt"], tied_loss):
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        found.append((loss.detach().double(), [w.grad.clone() for w in weights]))
    (loss, gradients), (tied, tied_gradients) = found
    torch.testing.assert_close(tied, loss, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, tied_gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
    assert not model.decoder.prediction["embed"].weight.grad[-1].any(), "the start stays zero"
