"""Counts of all n-grams of a text, up to an order, in arrays.

Everything is in memory: up to 200 bytes per token at the peak where nearly every n-gram is distinct (1 million tokens,
order 4: 187 MB), less where n-grams repeat.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class OrderCounts(NamedTuple):
    """The distinct n-grams of one order, N of them, sorted by (prefix, word)."""

    prefixes: np.ndarray
    """[N] int64: the n-gram of the order below without the last word; zeros for order 1."""
    suffixes: np.ndarray
    """[N] int64: the one without the first word; zeros for order 1."""
    words: np.ndarray
    """[N] int64: the last word."""
    counts: np.ndarray
    """[N] int64"""
    is_first: np.ndarray
    """[N] bool: True where it starts with the begin of a sentence."""


def count_ngrams(
    sentences: Iterable[Sequence[int]], order: int, word_count: int, begin: int, end: int
) -> list[OrderCounts]:
    """`OrderCounts` of the orders 1 to `order`; `begin` and `end` enclose every sentence.

    Order 1 has a row for each of the `word_count` words, in order, seen or not; `begin` has count 0 there, because
    nothing predicts it. N-grams do not cross sentences.
    """
    words, positions = _flatten(sentences, begin, end)
    counts = np.bincount(words, minlength=word_count)
    counts[begin] = 0
    every = np.arange(word_count)
    zeros = np.zeros(word_count, np.int64)
    orders = [OrderCounts(zeros, zeros, every, counts, every == begin)]
    ending_here = words.copy()  # which n-gram of the order below ends at each place
    for length in range(2, order + 1):
        orders.append(_count_longer(orders[-1], words, positions >= length - 1, ending_here, word_count))
    return orders


def _flatten(sentences: Iterable[Sequence[int]], begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """All words one after the other, int64, and each one's place in its sentence."""
    parts, lengths = [], []
    for sentence in sentences:
        parts.append(np.array([begin, *sentence, end], np.int32))
        lengths.append(len(sentence) + 2)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts = np.cumsum(lengths) - lengths
    words = np.concatenate(parts).astype(np.int64)
    return words, np.arange(len(words)) - np.repeat(starts, lengths)


def _count_longer(
    below: OrderCounts, words: np.ndarray, fits: np.ndarray, ending_here: np.ndarray, word_count: int
) -> OrderCounts:
    """The next order. `ending_here` is set to its n-grams where one fits into the sentence."""
    places = np.flatnonzero(fits)
    keys = ending_here[places - 1] * word_count + words[places]
    keys, examples, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    prefixes = keys // word_count
    suffixes = ending_here[places[examples]]
    ending_here[places] = inverse
    return OrderCounts(prefixes, suffixes, keys % word_count, counts, below.is_first[prefixes])
