"""Counts of n-grams are those of a loop over the sentences."""

import random
from collections import Counter

import pytest

from penstock.scoring.ngram.estimation.ngram_counts import count_ngrams

BEGIN, END, WORDS = 5, 6, 7


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
