"""Counts of n-grams and their smoothing, against the obvious versions."""

import random
from collections import Counter

import numpy as np
import pytest

from penstock.scoring.ngram.estimation.kneser_ney import FALLBACK_DISCOUNTS, _find_discounts, count_ngrams, estimate

BEGIN, END, WORDS = 5, 6, 7
A, B, BEGIN, END = range(4)


def spelled(orders) -> list[list[tuple[int, ...]]]:
    """All words of each n-gram, from the links to its prefix."""
    result, below = [], [()]
    for order in orders:
        below = [(*below[prefix], word) for prefix, word in zip(order.prefixes, order.words, strict=True)]
        result.append(below)
    return result


@pytest.mark.parametrize("seed", range(6))
def test_counts_and_links(seed):
    chance = random.Random(seed)
    sentences = [chance.choices(range(4), k=chance.randrange(7)) for _ in range(chance.choice([1, 2, 40]))]
    orders = count_ngrams(sentences, 5, WORDS, BEGIN, END)
    ngrams = spelled(orders)
    for length in range(1, 6):
        counts = Counter()
        for sentence in sentences:
            padded = (BEGIN, *sentence, END)
            counts.update(padded[i : i + length] for i in range(len(padded) - length + 1))
        ours = dict(zip(ngrams[length - 1], orders[length - 1].counts.tolist(), strict=True))
        if length == 1:
            assert list(ours) == [(word,) for word in range(WORDS)]
            counts[(BEGIN,)] = 0
            ours = {ngram: count for ngram, count in ours.items() if count or ngram in counts}
        assert ours == counts
        assert [ngram[0] == BEGIN for ngram in ngrams[length - 1]] == orders[length - 1].is_first.tolist()
        if length > 1:
            suffixes = [ngrams[length - 2][suffix] for suffix in orders[length - 1].suffixes]
            assert suffixes == [ngram[1:] for ngram in ngrams[length - 1]]


def test_discounts_follow_chen_and_goodman():
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 4 / 8, D1 = 1 - 2 Y 2/4, D2 = 2 - 3 Y 1/2, D3+ = 3 - 4 Y 1/1
    discounts = _find_discounts(np.array([0, 1, 1, 1, 1, 2, 2, 3, 4, 9]))
    assert discounts == (0.5, 1.25, 1.0, False)


@pytest.mark.parametrize("counts", [[], [1, 1, 2], [2, 3, 4], [1, 2, 3, 4, 4, 4, 4, 4, 4, 4], [1, 1, 1, 2, 3, 3]])
def test_text_without_valid_discounts_uses_the_fallback(counts):
    assert _find_discounts(np.array(counts, dtype=np.int64)) == (*FALLBACK_DISCOUNTS, True)


def test_pruning_by_hand():
    """The example above without the bigrams seen once: their counts go to the back-off."""
    orders = count_ngrams([[A, B], [A]], 2, 4, BEGIN, END)
    unigrams, bigrams = estimate(orders, [0, 1], BEGIN, np.array([True, True, False, True]))
    assert unigrams.backoffs == pytest.approx([1.0, 1.0, 0.5, 1.0])
    assert bigrams.is_kept.tolist() == [False, False, False, True]
    assert bigrams.probabilities[3] == pytest.approx(0.5 + 7 / 48)
