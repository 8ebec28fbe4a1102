"""The bootstrap interval: where it must lie, and that it is the same every time."""

import numpy as np
import pytest

from penstock.evaluation.confidence import bootstrap_interval


def test_it_is_the_same_every_time_and_holds_the_rate():
    draw = np.random.default_rng(3)
    edits, units = draw.integers(0, 4, 60).tolist(), draw.integers(3, 12, 60).tolist()
    low, high = bootstrap_interval(edits, units)
    assert bootstrap_interval(edits, units) == (low, high)
    assert low < sum(edits) / sum(units) < high


def test_utterances_that_are_all_alike_leave_no_doubt():
    assert bootstrap_interval([1] * 9, [4] * 9) == (0.25, 0.25)


def test_it_is_about_that_of_independent_errors():
    """2,000 utterances of 10 words, each word wrong with probability 0.1: deviation sqrt(0.1 * 0.9 / 20000)."""
    edits = np.random.default_rng(1).binomial(10, 0.1, 2000)
    low, high = bootstrap_interval(edits.tolist(), [10] * 2000)
    assert high - low == pytest.approx(2 * 1.96 * (0.1 * 0.9 / 20000) ** 0.5, rel=0.1)


def test_long_utterances_weigh_more():
    low, high = bootstrap_interval([0, 10], [90, 10])
    assert (low, high) == (0.0, 1.0)
    assert bootstrap_interval([0] * 50 + [1] * 50, [9] * 50 + [1] * 50).high < 0.2, "not the mean of the rates"


def test_nothing_to_draw_from():
    assert bootstrap_interval([], []) is None
