"""`benchmarks/fusion_weights.py`: every strategy and weight decoded, errors counted, the best weight named."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import fusion_weights
from penstock.evaluation.errors import EditCounts
from penstock.scoring.ngram.arpa import write_arpa
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.estimation.text import TextTokenizer
from penstock.scoring.ngram.io import read_token_names
from tests.helpers.golden import AN4

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "an4-rnnt-hybrid"
MANIFEST = AN4 / "manifest.jsonl"


@pytest.fixture
def lm_of_references(tmp_path) -> Path:
    """A model that knows what is said: with it there must be fewer errors."""
    text = tmp_path / "references.txt"
    lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    text.write_text("\n".join(json.loads(line)["text"] for line in lines), encoding="utf-8")
    sentences = TextTokenizer(MODEL / "tokenizer.model").read([str(text)])
    path = tmp_path / "lm.arpa"
    write_arpa(build_lm(sentences, read_token_names(MODEL / "tokenizer.model"), order=3).arpa, path)
    return path


def test_a_language_model_that_knows_the_words_lowers_wer(lm_of_references, tmp_path, capsys):
    out = tmp_path / "points.json"
    arguments = ["--lm", lm_of_references, "--manifest", MANIFEST, "--model", MODEL, "--context", "70,0"]
    arguments += ["--weights", ".5", "--json", out]
    assert fusion_weights.main([*map(str, arguments)]) == 0
    points = json.loads(out.read_text(encoding="utf-8"))["points"]
    assert len(points) == 2 * (1 + 2 * 4)
    wer = {(point["search"], point["strategy"], point["weight"]): point["wer"] for point in points}
    for search in ("alsd", "aes"):
        without = {rate for (each, _, weight), rate in wer.items() if each == search and weight == 0}
        assert len(without) == 1  # a strategy without a language model changes nothing
        for strategy in ("eq. 2 late", "eq. 3 late"):  # "early" cannot find what acoustic scores alone have pruned
            assert wer[search, strategy, 0.5] < wer[search, strategy, 0]
    assert wer["greedy", "", 0.5] < wer["greedy", "", 0]
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1 + 2 * 4


def test_best_weight_and_weight_of_other_speakers():
    def point(weight: float, *edits: int):
        return fusion_weights.Point("[1,0]", "greedy", "", weight, [EditCounts(each, 0, 0, 10) for each in edits])

    curve = [point(0, 3, 3, 3), point(0.5, 0, 4, 2), point(1, 2, 1, 3)]
    assert fusion_weights.best_of(curve).weight == 0.5  # as good as 1
    # The second and the third utterance are best with 1, the first and the third with 0.5, the first two with 1.
    assert fusion_weights.errors_with_weight_of_other_speakers(curve, ["a", "b", "c"]) == 2 + 4 + 3
    assert fusion_weights.errors_with_weight_of_other_speakers(curve, ["a", "b", "b"]) == 2 + 4 + 2
    summary = fusion_weights.summary(curve, ["a", "b", "c"])
    assert "33.3 %" in summary  # 9 errors to 6


def test_weights_are_numbers_from_0_on_with_0_among_them():
    assert fusion_weights.weights("1,.5,1") == [0, 0.5, 1]
    for text in ("-1", "nan", "inf", "one"):
        with pytest.raises(ValueError):
            fusion_weights.weights(text)


def test_a_missing_matplotlib_is_named_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status = fusion_weights.main(["--lm", "none", "--manifest", "none", "--plot", str(tmp_path / "plot.png")])
    assert status == 1
    assert "matplotlib is needed" in capsys.readouterr().err
