import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.reporting.percentiles import NAMES, percentiles_ms


def test_by_hand():
    """Of 1 .. 100 s the 50th of the gaps lies between 50 and 51: the next value that was measured counts."""
    found = percentiles_ms([float(second) for second in range(1, 101)])
    assert found == {"p50": 51_000.0, "p95": 96_000.0, "p99": 100_000.0, "max": 100_000.0}


def test_one_value_is_all_of_them():
    assert percentiles_ms([0.25]) == dict.fromkeys(NAMES, 250.0)


def test_nothing_measured_is_not_zero():
    assert all(math.isnan(value) for value in percentiles_ms([]).values())


def test_an_answer_that_never_came_shows_in_the_tail_alone():
    found = percentiles_ms([0.01] * 95 + [math.inf] * 6)
    assert (found["p50"], found["p95"], found["max"]) == (pytest.approx(10.0), math.inf, math.inf)


@given(st.lists(st.floats(0, 1e3), min_size=1))
def test_each_was_measured_and_they_grow(seconds):
    found = list(percentiles_ms(seconds).values())
    assert found == sorted(found)
    assert set(found) <= {1000 * second for second in seconds}
