"""Spoken numbers in eight languages against how a native writes them: tests/data/spoken_numbers.tsv."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.pipeline.results.figures import figures_of, find_figures
from penstock_common.options import FIGURE_LANGUAGES

TABLE = Path(__file__).parents[2] / "data" / "spoken_numbers.tsv"
PAGE = Path(__file__).parents[3] / "docs" / "transcription.md"


class Line(NamedTuple):
    language: str
    spoken: str
    written: str
    failure: str = ""


LINES = [Line(*line.split("\t")) for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
NUMBERS = [line for line in LINES if line.spoken != line.written]


def test_the_table_has_all_languages_and_few_failures():
    assert set(Counter(line.language for line in LINES)) == set(FIGURE_LANGUAGES)
    assert len(NUMBERS) == 80
    assert sum(not line.failure for line in NUMBERS) >= 72
    page = PAGE.read_text(encoding="utf-8")
    assert all(line.failure in page for line in NUMBERS)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.language}: {line.spoken}")
def test_numbers_are_written_as_a_native_does(line):
    written = figures_of(line.spoken, line.language)
    assert (written == line.written) == (not line.failure)
    assert figures_of(written, line.language) == written
    others = figures_of(line.spoken.upper(), line.language)  # capitals; English may and march are no months then
    assert line.spoken == line.written or line.failure or others.lower() == written.lower()


def test_english_numbers_that_stay_words_and_others():
    stay = "five five|five, five, five|zero|ten|it may first be|a million|wait a second|, . !|"
    assert [figures_of(each, "en") for each in stay.split("|")] == stay.split("|")
    spoken = (
        "twenty, five|(twenty five)|nineteen oh five|nineteen sixty eight|two oh five five|May first|the one twenty"
    )
    written = "20, five|(25)|1905|19 68|2055|May 1st|the one 20"
    assert [figures_of(each, "en") for each in spoken.split("|")] == written.split("|")


def test_a_pause_tells_two_numbers_apart():
    words = ["twenty", "five", "five", "five", "five"]
    assert [figure.text for figure in find_figures(words, "en")] == ["25", "555"]
    assert [figure.text for figure in find_figures(words, "en", [False, True, False, False, False])] == ["20", "5555"]
    assert find_figures(words[1:4], "en", [False, True, True]) == []
