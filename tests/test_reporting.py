"""Percentiles, software versions, Markdown tables and the check of a report's path."""

import math
import subprocess

import pytest

from penstock import reporting
from penstock.errors import PenstockError
from penstock.reporting import check_writable, markdown_table, percentiles_ms


def test_percentiles_by_hand():
    """The median of 1 .. 100 s is between 50 and 51: the higher measured value counts."""
    found = percentiles_ms([float(second) for second in range(1, 101)])
    assert found == {"p50": 51_000.0, "p95": 96_000.0, "p99": 100_000.0, "max": 100_000.0}


def test_a_missing_answer_shows_in_the_tail_only():
    found = percentiles_ms([0.01] * 95 + [math.inf] * 6)
    assert (found["p50"], found["p95"], found["max"]) == (pytest.approx(10.0), math.inf, math.inf)


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


def test_columns_are_aligned_with_numbers_on_the_right():
    assert markdown_table(["decoder", "ms"], [["greedy", 1.234], ["alsd", 123.4]], left=1).splitlines() == [
        "| decoder |   ms |",
        "| ------- | ---: |",
        "| greedy  | 1.23 |",
        "| alsd    |  123 |",
    ]


def test_a_path_that_cannot_be_written_is_an_error(tmp_path):
    check_writable(tmp_path / "new.json", force=False)
    for path, match in [
        (tmp_path, "is a directory"),
        (tmp_path / "a" / "b.json", "there is no directory"),
        (tmp_path / ("a" * 300), "OUTPUT_FAILED: --json: .*: File name too long"),
    ]:
        with pytest.raises(PenstockError, match=match):
            check_writable(path, force=True)
    report = tmp_path / "old.json"
    report.write_text("{}")
    check_writable(report, force=True)
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: --json: .*old\.json exists; --force replaces it"):
        check_writable(report, force=False)
