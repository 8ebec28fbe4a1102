"""`python -m benchmarks.compare` of this checkout with itself: equal texts, one ratio per round."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import compare

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_a_checkout_equals_itself(tmp_path, monkeypatch, capsys):
    path = tmp_path / "compare.json"
    options = ["--streams", "2", "--decoders", "greedy", "--rounds", "1", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["compare", "--base", str(ROOT), *options])
    assert compare.main() == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert (result["decoder"], result["streams"], result["has_equal_texts"]) == ("greedy", 2, True)
    assert 0 < result["ratio_min"] == result["ratio_median"] == result["ratio_max"]
    assert [len(seconds) for seconds in result["seconds"].values()] == [1, 1]
    assert "| greedy  |       2 |" in capsys.readouterr().out
