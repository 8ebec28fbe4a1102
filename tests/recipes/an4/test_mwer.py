"""The head of MWER has the weights of a NeMo model; the oracle's environment has NeMo."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import dataclasses

import torch
from omegaconf import OmegaConf

from penstock.model.nemo.config import read_nemo_config
from recipes.an4.demo_model import DemoModelConfig, build_model, train_tokenizer
from recipes.an4.mwer import mwer_steps, tied_head
from recipes.training.batches import Batch
from recipes.training.trainer import MWER, Trainer, TrainerConfig

pytestmark = pytest.mark.oracle
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12, predictor_dropout=0.0)


@pytest.fixture
def made(tmp_path):
    tokenizer = train_tokenizer(["one two three four one one", "five six seven one"], tmp_path / "tokenizer", 40)
    torch.manual_seed(0)
    return build_model(SMALL, tokenizer), tokenizer / "tokenizer.model"


def batch() -> Batch:
    mel = torch.randn(3, 80, 160, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[1, 2, 3], [4, 2, 0], [0, 0, 0]])
    references = ["one two three", "four two", ""]
    return Batch(mel, torch.tensor([160, 130, 90]), labels, torch.tensor([3, 2, 0]), references)


def test_the_head_has_the_models_loss_and_gradient(made):
    model, _ = made
    model.eval()
    config = read_nemo_config(OmegaConf.to_container(model.cfg, resolve=True)).model
    head = tied_head(model, config.transducer, config.encoder.d_model, 0.0)
    trainer = Trainer({"rnnt": model}, {"rnnt": ()}, TrainerConfig(joint_dropout=0.0), {"tied": head})
    trainer.module.eval()
    weights = [*model.encoder.parameters(), *model.decoder.parameters(), *model.joint.parameters()]
    found = []
    for name in ("rnnt", "tied"):
        model.zero_grad()
        loss = trainer.losses(batch(), [name])[name]
        loss.backward()
        found.append((loss.detach().double(), [w.grad.clone() for w in weights]))
    (loss, gradients), (tied_loss, tied_gradients) = found
    torch.testing.assert_close(tied_loss, loss, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, tied_gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
    assert not model.decoder.prediction["embed"].weight.grad[-1].any(), "the start stays zero"


def test_mwer_trains_the_models_encoder_and_head(made):
    model, tokenizer = made
    steps = dataclasses.replace(mwer_steps("rnnt", model, tokenizer, 0.3), every=1)
    with torch.no_grad():  # blank is a little likelier than a label, so that the lists are not all alike
        model.joint.joint_net[-1].weight.mul_(0.1)
        model.joint.joint_net[-1].bias.zero_()[-1] = 3.0
    trainer = Trainer({"rnnt": model}, {"rnnt": ()}, TrainerConfig(steps=4), mwer=steps)
    found = trainer.losses(batch(), [MWER])
    found[MWER].backward()
    for part in (model.encoder, model.decoder, model.joint):
        assert any(bool(p.grad.any()) for p in part.parameters() if p.grad is not None)
    before = model.encoder.layers[0].feed_forward1.linear1.weight.detach().clone()
    assert MWER in trainer.train_step(batch())
    assert not torch.equal(before, model.encoder.layers[0].feed_forward1.linear1.weight)
    assert set(trainer.module.keys()) == {"encoder", "ctc", "rnnt_predictor", "rnnt_joint"}
