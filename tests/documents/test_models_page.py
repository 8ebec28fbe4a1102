"""The table of checkpoints names tests that exist."""

import re
from pathlib import Path

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
