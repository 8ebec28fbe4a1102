"""Models built here are those of KenLM's lmplz, sum to one after every context, and invalid input is rejected."""

import random

import pytest
import torch

from penstock.errors import PenstockError
from penstock.scoring.ngram.arpa import read_arpa, write_arpa
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.io import load_ngram_lm
from tests.helpers.ngram_golden import LABELS, NAMES, PRUNE, arpa_path, golden_text, to_labels
from tests.helpers.reference.ngram import NgramReference


def golden_sentences() -> list[list[int]]:
    return [to_labels(sentence) for sentence in golden_text()]


@pytest.mark.parametrize("name", sorted(PRUNE))
def test_equal_to_lmplz(name, tmp_path):
    order, prune = int(name[0]), PRUNE[name]
    write_arpa(build_lm(golden_sentences(), NAMES, order, prune).arpa, tmp_path / "ours.arpa")
    ours, lmplz = NgramReference.read(tmp_path / "ours.arpa"), NgramReference.read(arpa_path(name))
    extra = {ngram for ngram in ours.probabilities if ngram not in lmplz.probabilities}
    assert extra == {("▁x",), ("y",)}  # tokens that the text lacks: lmplz leaves them to <unk>
    for ngram, probability in lmplz.probabilities.items():
        assert ours.probabilities[ngram] == pytest.approx(probability, abs=2e-6)
        assert ours.backoffs[ngram] == pytest.approx(lmplz.backoffs[ngram], abs=2e-6)
    for ngram in extra:
        assert ours.probabilities[ngram] == pytest.approx(lmplz.probabilities[("<unk>",)], abs=2e-6)


@pytest.mark.parametrize(
    ("order", "prune", "with_unknown"),
    [(1, [], False), (2, [], True), (3, [], False), (3, [0, 1], True), (5, [0, 0, 3], False)],
)
def test_every_context_sums_to_one(tmp_path, order, prune, with_unknown):
    chance = random.Random(order)
    sentences = golden_sentences()
    if with_unknown:
        sentences = [[0 if chance.random() < 0.05 else label for label in sentence] for sentence in sentences]
    write_arpa(build_lm(sentences, NAMES, order, prune).arpa, tmp_path / "lm.arpa")
    lm = load_ngram_lm(tmp_path / "lm.arpa", NAMES)
    states = torch.arange(lm.state_count)
    scores = lm.score_all(states).scores.double()
    (control,) = NAMES.control_labels  # in no text: scored as <unk>, which is not its own
    scores[:, control] = -torch.inf
    total = scores.exp().sum(1) + lm.final_scores(states).double().exp()
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


def test_a_tiny_text_uses_fallback_discounts(tmp_path):
    built = build_lm([[LABELS["▁a"]]], NAMES, 3)
    assert all(discounts.is_fallback for discounts in built.discounts)
    assert built.arpa.counts == [19, 2, 1]
    write_arpa(built.arpa, tmp_path / "lm.arpa")
    assert read_arpa(tmp_path / "lm.arpa").counts == [19, 2, 1]


@pytest.mark.parametrize(
    ("sentences", "order", "prune", "message"),
    [
        ([], 3, [], "there is no text"),
        ([[1]], 0, [], "order 0: expected 1 to 10"),
        ([[1]], 11, [], "order 11: expected 1 to 10"),
        ([[1]], 2, [0, 0, 1], "3 pruning counts for order 2"),
        ([[1]], 2, [1], "the first pruning count is 1"),
        ([[1]], 3, [0, 2, 1], "pruning counts 0 2 1: a higher order must not"),
    ],
)
def test_invalid_input_is_rejected(sentences, order, prune, message):
    with pytest.raises(PenstockError, match=message):
        build_lm(sentences, NAMES, order, prune)
