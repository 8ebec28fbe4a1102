"""Shallow fusion is the sum of weighted scores; its rules are those of the paper."""

import math

import pytest
import torch

from penstock.scoring.fusion import Fusion, FusionStates, blank_offset, label_offset
from tests.helpers.beam import VOCABULARY, TableAutomaton

NEUTRAL = (0, 3, VOCABULARY - 1)
IS_NEUTRAL = torch.zeros(VOCABULARY + 1, dtype=torch.bool).index_fill(0, torch.tensor(NEUTRAL), True)
STATES = FusionStates(torch.tensor([1, 4, 6]), torch.tensor([2, 0, 5]), torch.tensor([0.5, 1.0, 0.0]))
EVERY_LABEL = torch.arange(VOCABULARY)
BLANK = torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64).log()
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


@pytest.fixture(params=["both", "lm", "boost"])
def fusions(request) -> tuple[Fusion, Fusion]:
    """With neutral labels, and without."""
    lm = TableAutomaton(1) if request.param != "boost" else None
    boost = TableAutomaton(2) if request.param != "lm" else None
    return Fusion(lm, boost, IS_NEUTRAL), Fusion(lm, boost)


def assert_same(found: FusionStates, expected: FusionStates) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_scores_of_all_labels(fusions):
    found, plain = (fusion.score_all(STATES).scores for fusion in fusions)
    assert torch.equal(found[:, list(NEUTRAL)], torch.zeros(3, len(NEUTRAL)))
    others = ~IS_NEUTRAL[:-1]
    assert torch.equal(found[:, others], plain[:, others])


def test_a_bonus_goes_to_labels_that_a_language_model_scores(fusions):
    with_neutral, plain = fusions
    found = with_neutral.score_all(STATES, 1.5).scores
    assert torch.equal(found[:, list(NEUTRAL)], torch.zeros(3, len(NEUTRAL)))
    others = ~IS_NEUTRAL[:-1]
    expected = plain.score_all(STATES).scores + 1.5 * STATES.lm_weights.unsqueeze(1)
    assert torch.equal(found[:, others], expected[:, others])


def test_states_after_each_label(fusions):
    found, plain = (fusion.score_all(STATES) for fusion in fusions)
    for label in EVERY_LABEL:
        labels = label.expand(3)
        expected = STATES if label in NEUTRAL else plain.follow(labels)
        assert_same(found.follow(labels), expected)


def test_one_label_at_a_time(fusions):
    with_neutral, plain = fusions
    for label in EVERY_LABEL:
        labels = label.expand(3)
        scores, states = with_neutral.advance(STATES, labels)
        expected, after = plain.advance(STATES, labels)
        assert torch.equal(scores, torch.zeros(3) if label in NEUTRAL else expected)
        assert_same(states, STATES if label in NEUTRAL else after)


def test_a_mix_of_labels(fusions):
    with_neutral, plain = fusions
    labels = torch.tensor([3, 5, 0])
    scores, states = with_neutral.advance(STATES, labels)
    expected, after = plain.advance(STATES, labels)
    assert torch.equal(scores, torch.stack([torch.tensor(0.0), expected[1], torch.tensor(0.0)]))
    assert states.lm_states.tolist() == [1, int(after.lm_states[1]), 6]
    assert states.boost_states.tolist() == [2, int(after.boost_states[1]), 5]
    assert torch.equal(with_neutral.final_scores(STATES), plain.final_scores(STATES))


def test_equation_3():
    labels = label_offset(BLANK, WEIGHTS)
    assert labels.tolist() == pytest.approx([0.5 * math.log(0.75), 0.2 * math.log(0.25), 0.3 * math.log(1e-6)])
    assert blank_offset(BLANK, WEIGHTS).tolist() == pytest.approx([0.5 * math.log(0.25), 0.2 * math.log(0.75), 0.0])


def test_equation_3_preserves_the_total_probability():
    """With weight 1 the external distribution over labels (uniform over 5) and blank sums to 1."""
    ones = torch.ones(2, dtype=torch.float64)
    labels = label_offset(BLANK[:2], ones).exp()
    blank = blank_offset(BLANK[:2], ones).exp()
    torch.testing.assert_close(labels * 5 * (1 / 5) + blank, ones)


def test_weight_0_is_no_language_model():
    none, extremes = torch.zeros(2), torch.tensor([0.0, -math.inf])
    assert label_offset(extremes, none).tolist() == [0.0, 0.0]
    assert blank_offset(extremes, none).tolist() == [0.0, 0.0]
