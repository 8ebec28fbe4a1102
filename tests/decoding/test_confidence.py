"""Tokens to word confidence."""

import math

import pytest

from penstock.decoding.confidence import word_confidence


def test_the_lowest_probability_counts():
    assert word_confidence([math.log(0.5), math.log(0.1), math.log(0.5)]) == pytest.approx(0.1)


def test_a_log_probability_rounded_above_0_is_certain():
    assert word_confidence([1e-7]) == 1.0


def test_a_word_has_tokens():
    with pytest.raises(ValueError, match="without tokens"):
        word_confidence([])
