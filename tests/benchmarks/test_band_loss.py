"""The losses that the benchmark times."""

import pytest
import torch

from benchmarks import band_loss
from penstock.model.config import FACTORIZED, STANDARD


@pytest.mark.parametrize("kind", [STANDARD, FACTORIZED])
def test_a_band_has_fewer_points_and_a_gradient(kind):
    torch.manual_seed(0)
    head = band_loss._head(kind)
    assert band_loss.step(head, 1, 20, 3, None) == band_loss.HYPOTHESES * 20 * 4
    assert band_loss.step(head, 1, 20, 3, 2) < 0.8 * band_loss.HYPOTHESES * 20 * 4
    trained = {name for name, p in head.named_parameters() if p.grad is not None}
    frozen = {name for name, _ in head.named_parameters() if kind == FACTORIZED and name.startswith("predictor.")}
    assert trained == {name for name, _ in head.named_parameters()} - frozen
