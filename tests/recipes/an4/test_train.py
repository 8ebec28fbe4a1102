"""What the recipe exports; the oracle's environment has NeMo."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import numpy as np
import torch

from penstock.model.bundle import Checkpoint
from penstock.model.config import FACTORIZED, TransducerConfig
from penstock.model.nemo.importer import import_nemo
from penstock.training.factorized_head import FactorizedHead
from penstock.training.trainer import Trainer, TrainerConfig
from recipes.an4.demo_model import DemoModelConfig, build_model, condition_input, train_tokenizer
from recipes.an4.train import _export

pytestmark = pytest.mark.oracle
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12)


def test_a_factorized_head_becomes_a_bundle_with_the_encoder_of_the_nemo_file(tmp_path):
    tokenizer = train_tokenizer(["one two three four one one", "five six seven one"], tmp_path / "tokenizer", 40)
    model = build_model(SMALL, tokenizer)
    condition_input(model, [np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)])
    vocabulary = model.ctc_decoder.num_classes_with_blank - 1
    config = TransducerConfig(vocabulary, SMALL.hidden, 1, SMALL.hidden, "tanh", (), kind=FACTORIZED)
    heads = {"ft": FactorizedHead(config, SMALL.width)}
    trainer = Trainer({"rnnt": model}, {"rnnt": ()}, TrainerConfig(), heads)
    with torch.no_grad():
        for tensor in trainer.average.tensors.values():
            tensor.add_(0.25)
    wanted = {name: tensor + 0.25 for name, tensor in heads["ft"].tensors().items()}
    _export(trainer, {"rnnt": model}, heads, tmp_path)
    made, rnnt = Checkpoint(tmp_path / "ft"), import_nemo(tmp_path / "rnnt.nemo", tmp_path / "rnnt")
    made.verify()
    assert made.config.encoder == rnnt.config.encoder and made.config.transducer.is_factorized
    tensors, encoder = made.tensors(), rnnt.tensors("features.", "encoder.", "ctc.")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in encoder.items())
