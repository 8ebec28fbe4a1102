import math

import pytest

from penstock.reporting.table import markdown_table, three_digits


def test_columns_are_aligned_and_numbers_stand_to_the_right():
    assert markdown_table(["decoder", "ms"], [["greedy", 1.234], ["alsd", 123.4]], left=1).splitlines() == [
        "| decoder |   ms |",
        "| ------- | ---: |",
        "| greedy  | 1.23 |",
        "| alsd    |  123 |",
    ]


def test_a_table_may_have_no_rows():
    assert markdown_table(["a", "beam"], []).splitlines() == ["|  a | beam |", "| -: | ---: |"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="zip"):
        markdown_table(["a", "b"], [["1", "2"], ["3"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (9.999, "10.00"), (10.0, "10.0"), (99.94, "99.9"), (1e4, "10000"), (-12.3, "-12.3")],
)
def test_three_digits(value, text):
    assert three_digits(value) == text
    assert three_digits(math.nan) == "nan"
