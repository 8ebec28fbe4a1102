"""Discounts and probabilities computed by hand."""

import numpy as np
import pytest

from penstock.scoring.ngram.estimation.kneser_ney import FALLBACK_DISCOUNTS, _find_discounts, estimate
from penstock.scoring.ngram.estimation.ngram_counts import count_ngrams

A, B, BEGIN, END = range(4)


def test_discounts_follow_chen_and_goodman():
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 4 / 8, D1 = 1 - 2 Y 2/4, D2 = 2 - 3 Y 1/2, D3+ = 3 - 4 Y 1/1
    discounts = _find_discounts(np.array([0, 1, 1, 1, 1, 2, 2, 3, 4, 9]))
    assert discounts == (0.5, 1.25, 1.0, False)


@pytest.mark.parametrize("counts", [[], [1, 1, 2], [2, 3, 4], [1, 2, 3, 4, 4, 4, 4, 4, 4, 4], [1, 1, 1, 2, 3, 3]])
def test_text_without_valid_discounts_uses_the_fallback(counts):
    assert _find_discounts(np.array(counts, dtype=np.int64)) == (*FALLBACK_DISCOUNTS, True)


def test_bigrams_by_hand():
    """Sentences `a b` and `a`: discounts fall back to 0.5, 1, 1.5.

    Bigrams: <s> a 2, a b 1, a </s> 1, b </s> 1. Different words before: a 1 (<s>), b 1 (a), </s> 2 (a, b); together 4.
    Unigrams: what is left is (0.5 + 0.5 + 1) / 4 = 1/2, shared by a, b and </s>: 1/6 each.
      p(a) = p(b) = 0.5/4 + 1/6 = 7/24, p(</s>) = 1/4 + 1/6 = 10/24.
    After <s>: p(a) = (2 - 1)/2 + 1/2 * 7/24. After a: p(b) = 0.5/2 + 1/2 * 7/24. After b: p(</s>) = 0.5 + 0.5 * 10/24.
    """
    orders = count_ngrams([[A, B], [A]], 2, 4, BEGIN, END)
    unigrams, bigrams = estimate(orders, [0, 0], BEGIN, np.array([True, True, False, True]))
    assert unigrams.probabilities == pytest.approx([7 / 24, 7 / 24, 1.0, 10 / 24])
    assert unigrams.backoffs == pytest.approx([0.5, 0.5, 0.5, 1.0])
    by_hand = {(A, B): 0.25 + 7 / 48, (A, END): 0.25 + 10 / 48, (B, END): 0.5 + 10 / 48, (BEGIN, A): 0.5 + 7 / 48}
    ours = dict(
        zip(zip(orders[1].prefixes.tolist(), orders[1].words.tolist(), strict=True), bigrams.probabilities, strict=True)
    )
    assert ours == pytest.approx(by_hand)


def test_pruning_by_hand():
    """The example above without the bigrams seen once: their counts go to the back-off."""
    orders = count_ngrams([[A, B], [A]], 2, 4, BEGIN, END)
    unigrams, bigrams = estimate(orders, [0, 1], BEGIN, np.array([True, True, False, True]))
    assert unigrams.backoffs == pytest.approx([1.0, 1.0, 0.5, 1.0])
    assert bigrams.is_kept.tolist() == [False, False, False, True]
    assert bigrams.probabilities[3] == pytest.approx(0.5 + 7 / 48)
