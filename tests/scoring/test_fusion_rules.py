"""Equations 2 and 3."""

import math

import pytest
import torch

from penstock.scoring.fusion_rules import FusionStrategy, blank_offset, label_offset

BLANK = torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64).log()
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def test_equation_3():
    strategy = FusionStrategy(min_label_probability=1e-4)
    labels = label_offset(BLANK, WEIGHTS, strategy)
    assert labels.tolist() == pytest.approx([0.5 * math.log(0.75), 0.2 * math.log(0.25), 0.3 * math.log(1e-4)])
    assert blank_offset(BLANK, WEIGHTS, strategy).tolist() == pytest.approx(
        [0.5 * math.log(0.25), 0.2 * math.log(0.75), 0.0]
    )


def test_equation_3_preserves_the_total_probability():
    """With weight 1 the external distribution over labels (uniform over 5) and blank sums to 1."""
    strategy, ones = FusionStrategy(), torch.ones(2, dtype=torch.float64)
    labels = label_offset(BLANK[:2], ones, strategy).exp()
    blank = blank_offset(BLANK[:2], ones, strategy).exp()
    torch.testing.assert_close(labels * 5 * (1 / 5) + blank, ones)


def test_weight_0_is_no_language_model():
    strategy, none = FusionStrategy(), torch.zeros(2)
    extremes = torch.tensor([0.0, -math.inf])
    assert label_offset(extremes, none, strategy).tolist() == [0.0, 0.0]
    assert blank_offset(extremes, none, strategy).tolist() == [0.0, 0.0]
