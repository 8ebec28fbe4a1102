"""Percentiles, software versions, Markdown tables and the check of a report's path."""

import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import reporting
from penstock.errors import PenstockError
from penstock.reporting import PERCENTILE_NAMES, check_writable, finite, markdown_table, percentiles_ms, three_digits


def test_percentiles_by_hand():
    """The median of 1 .. 100 s is between 50 and 51: the higher measured value counts."""
    found = percentiles_ms([float(second) for second in range(1, 101)])
    assert found == {"p50": 51_000.0, "p95": 96_000.0, "p99": 100_000.0, "max": 100_000.0}


def test_one_value_is_every_percentile():
    assert percentiles_ms([0.25]) == dict.fromkeys(PERCENTILE_NAMES, 250.0)


def test_percentiles_of_nothing_are_not_numbers():
    assert all(math.isnan(value) for value in percentiles_ms([]).values())


def test_a_missing_answer_shows_in_the_tail_only():
    found = percentiles_ms([0.01] * 95 + [math.inf] * 6)
    assert (found["p50"], found["p95"], found["max"]) == (pytest.approx(10.0), math.inf, math.inf)


@given(st.lists(st.floats(0, 1e3), min_size=1))
def test_percentiles_are_measured_values_in_order(seconds):
    found = list(percentiles_ms(seconds).values())
    assert found == sorted(found)
    assert set(found) <= {1000 * second for second in seconds}


def test_the_commit_is_that_of_the_sources_and_says_where_they_have_changed(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)

    monkeypatch.setattr(reporting, "_SOURCES", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert reporting.commit() is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    name = reporting.commit()
    assert 6 < len(name) < 20
    (tmp_path / "a").write_text("2")
    assert reporting.commit() == f"{name} with changes"


def test_packages_that_are_not_installed_are_left_out():
    assert list(reporting.package_versions(["torch", "no-such-package"])) == ["torch"]


def test_columns_are_aligned_with_numbers_on_the_right():
    assert markdown_table(["decoder", "ms"], [["greedy", 1.234], ["alsd", 123.4]], left=1).splitlines() == [
        "| decoder |   ms |",
        "| ------- | ---: |",
        "| greedy  | 1.23 |",
        "| alsd    |  123 |",
    ]


def test_a_table_may_have_no_rows():
    assert markdown_table(["a", "beam"], []).splitlines() == ["|  a | beam |", "| -: | ---: |"]


def test_a_row_of_another_length_is_rejected():
    with pytest.raises(ValueError, match="zip"):
        markdown_table(["a", "b"], [["1", "2"], ["3"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (9.999, "10.00"), (10.0, "10.0"), (99.94, "99.9"), (1e4, "10000"), (-12.3, "-12.3")],
)
def test_three_digits(value, text):
    assert three_digits(value) == text
    assert three_digits(math.nan) == "nan"


def test_a_path_that_cannot_be_written_is_an_error(tmp_path):
    check_writable(tmp_path / "new.json")
    for path, match in [
        (tmp_path, "is a directory"),
        (tmp_path / "a" / "b.json", "there is no directory"),
        (tmp_path / ("a" * 300), "OUTPUT_FAILED: --json: .*: File name too long"),
    ]:
        with pytest.raises(PenstockError, match=match):
            check_writable(path)


def test_finite_keeps_everything_else():
    assert finite({1: [1, 2.5, math.nan, "x", None, True], "a": (math.inf,)}) == {
        "1": [1, 2.5, None, "x", None, True],
        "a": [None],
    }
