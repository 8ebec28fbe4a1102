"""Word errors during training."""

import numpy as np

from penstock.evaluation.edit_distance import edit_distance
from penstock.training.measure import Measure
from tests.evaluation.reference_edits import edit_distance as by_the_full_table


def test_equals_the_full_table():
    random = np.random.default_rng(3)
    for _ in range(300):
        reference, hypothesis = (tuple(random.choice(list("abc"), random.integers(0, 8))) for _ in range(2))
        assert edit_distance(reference, hypothesis) == by_the_full_table(reference, hypothesis)


def test_nothing_is_measured_without_a_manifest():
    assert Measure(None)({"rnnt": None}) == {}
