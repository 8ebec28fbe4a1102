"""A factorized transducer's scores are the paper's equations, written out plainly in the reference."""

import pytest
import torch

from penstock.decoding.transducer.networks import FactorizedNetwork, StandardNetwork, open_network
from penstock.errors import CheckpointError, SettingError
from penstock.model.config import FACTORIZED, IlmPair
from tests.helpers.random_models import random_checkpoint, random_ctc_checkpoint
from tests.helpers.reference.greedy import GreedyReference


def doubled(checkpoint) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in checkpoint.tensors().items()}


def test_the_kind_of_the_checkpoint_decides(tmp_path):
    assert type(open_network(random_checkpoint(tmp_path, 1))) is StandardNetwork
    assert type(open_network(random_checkpoint(tmp_path, 1, kind=FACTORIZED))) is FactorizedNetwork
    with pytest.raises(CheckpointError, match="has no transducer, only CTC"):
        open_network(random_ctc_checkpoint(tmp_path, 1))


@pytest.mark.parametrize("pair", [None, (1, 0), (0.6, 0.6), (0, 1.5), (2, 0)], ids=str)
def test_scores_after_some_labels(tmp_path, pair):
    """Equations 4 and 5; without weights equation 4."""
    checkpoint = random_checkpoint(tmp_path, 3, kind=FACTORIZED)
    network = open_network(checkpoint, dtype=torch.float64)
    pair = None if pair is None else IlmPair(*pair)
    reference = GreedyReference(checkpoint.config.transducer, doubled(checkpoint), pair=pair)
    weights = () if pair is None else network.ilm_weights([pair] * 3)
    encoded = torch.randn(3, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows, state = network.start(3)
    plain, plain_state = reference.predict(network.blank, reference.start())
    for label in (5, 0, 47):
        scores = network.score(network.project_encoder(encoded[None])[0], rows, weights)
        expected = torch.stack([reference.joint(frame, plain) for frame in encoded])
        torch.testing.assert_close(scores.log_probs, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(scores.log_probs.logsumexp(1), torch.zeros(3).double(), rtol=0, atol=1e-12)
        assert scores.durations is None
        if pair is None:
            assert scores.extra is None
        else:
            torch.testing.assert_close(scores.extra, reference.ilm_scores(plain).expand(3, -1), rtol=0, atol=1e-12)
        rows, state = network.predict(torch.tensor([label] * 3), state)
        plain, plain_state = reference.predict(label, plain_state)


def test_a_certain_blank_leaves_finite_labels(tmp_path):
    """log(1 - sigmoid(z)) is minus infinity in float32 from z = 17 on."""
    checkpoint = random_checkpoint(tmp_path, 2, kind=FACTORIZED)
    network = open_network(checkpoint)
    network._blank_output.bias += 40.0
    scores = network.score(network.project_encoder(torch.randn(1, 3, 16))[0], network.start(3).projected)
    assert scores.log_probs.isfinite().all()
    assert (scores.labels.logsumexp(1) < -30).all()
    assert (scores.blank.exp() == 1).all()


def test_fused_kernels_are_rejected_and_auto_is_torch(tmp_path):
    checkpoint = random_checkpoint(tmp_path, 1, kind=FACTORIZED)
    assert {open_network(checkpoint, kernels=kernels).kernels for kernels in ("auto", "torch")} == {"torch"}
    with pytest.raises(SettingError, match='kernels "fused" are not possible: a factorized transducer has none; acc'):
        open_network(checkpoint, kernels="fused")
    with pytest.raises(SettingError, match="kernels 'quick' are unknown"):
        open_network(checkpoint, kernels="quick")
