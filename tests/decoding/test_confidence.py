"""Tokens to word confidence."""

import math

import pytest

from penstock.decoding.confidence import Aggregation, token_confidence, word_confidence

HALF, TENTH = math.log(0.5), math.log(0.1)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [(Aggregation.MIN, 0.1), (Aggregation.PROD, 0.025), (Aggregation.MEAN, 0.025 ** (1 / 3))],
)
def test_aggregation(aggregation, expected):
    assert word_confidence([HALF, TENTH, HALF], aggregation) == pytest.approx(expected)


def test_a_log_probability_rounded_above_0_is_certain():
    assert token_confidence(1e-7) == 1.0


def test_a_word_has_tokens():
    with pytest.raises(ValueError, match="without tokens"):
        word_confidence([])
