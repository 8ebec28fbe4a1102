"""Training of heads on frozen frames, and the bundles that they become."""

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.errors import CheckpointError
from penstock.model.config import IlmPair, TransducerConfig
from recipes.training.encoded import EncodedUtterance, collate, draw_batches
from recipes.training.factorized_head import FactorizedHead
from recipes.training.head import TransducerHead
from recipes.training.head_bundle import write_head_bundle
from recipes.training.standard_head import StandardHead
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
