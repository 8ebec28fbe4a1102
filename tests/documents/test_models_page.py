"""The table of checkpoints names tests that exist, and the pages say what has not been run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_checkpoint_names_tests_that_exist():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"(?m)^\| checkpoint \|.*\| tests \|\n\|[-|]+\n((?:\|.*\n)+)", text)
    rows = table.splitlines()
    assert len(rows) > 5
    for row in rows:
        named = re.findall(r"tests/[\w/.]+", row.split("|")[-2])
        assert named, row
        for path in named:
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_the_pages_say_that_published_weights_were_not_run(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert re.search(r"not yet run with published weights|No published weights have been downloaded", text)
