"""Counts of all n-grams of a text, and interpolated modified Kneser-Ney smoothing of them (Chen & Goodman 1998, section
4.4.6; for the form with pruning, Heafield et al. 2013).

Everything is in memory: up to 200 bytes per token at the peak where nearly every n-gram is distinct (1 million tokens,
order 4: 187 MB), less where n-grams repeat. As in KenLM's `lmplz`: unigrams are interpolated with the uniform
distribution; n-grams that start a sentence keep their counts; the probability of pruned n-grams goes to the back-off,
so every context still sums to one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


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


class Discounts(NamedTuple):
    """Discounts of counts of 1, of 2, and of 3 and more."""

    one: float
    two: float
    three: float
    is_fallback: bool
    """True where the formula has no valid result for the text."""


class OrderEstimate(NamedTuple):
    """Probabilities of one order's n-grams, rows as in `OrderCounts`."""

    probabilities: np.ndarray
    """[N] float64, interpolated: `<s>` has 1, as in KenLM."""
    backoffs: np.ndarray
    """[N] float64: weight of the order below after this context; 1 where nothing follows it."""
    is_kept: np.ndarray
    """[N] bool: False where pruned."""
    discounts: Discounts


def estimate(orders: list[OrderCounts], prune: list[int], begin: int, is_possible: np.ndarray) -> list[OrderEstimate]:
    """Estimates every order.

    N-grams seen `prune[n - 1]` times or fewer are left out; a higher order must not have a lower count, and order 1
    keeps everything. `is_possible` [W] bool says which words share the uniform distribution: all but `begin` and those
    that no text can hold.
    """
    estimates: list[OrderEstimate] = []
    below = np.where(is_possible, 1.0 / np.count_nonzero(is_possible), 0.0)  # indexed by the word
    for level, order in enumerate(orders):
        adjusted = _adjusted_counts(order, orders[level + 1] if level + 1 < len(orders) else None)
        is_kept = (order.counts > prune[level]) | (level == 0)
        discounts = _find_discounts(adjusted)
        contexts = 1 if level == 0 else len(orders[level - 1].words)
        shares, backoffs = _smooth(order.prefixes, adjusted, is_kept, discounts, contexts)
        lower = below if level == 0 else below[order.suffixes]
        probabilities = shares + backoffs[order.prefixes] * lower
        if level == 0:
            probabilities[begin] = 1.0
        else:
            estimates[-1] = estimates[-1]._replace(backoffs=backoffs)
        estimates.append(OrderEstimate(probabilities, np.ones(len(adjusted)), is_kept, discounts))
        below = probabilities
    return estimates


def _adjusted_counts(order: OrderCounts, above: OrderCounts | None) -> np.ndarray:
    """[N] the number of different words before an n-gram; its count at the highest order and after `<s>`."""
    if above is None:
        return order.counts
    predecessors = np.bincount(above.suffixes, minlength=len(order.words))
    return np.where(order.is_first, order.counts, predecessors)


def _find_discounts(adjusted: np.ndarray) -> Discounts:
    """Chen & Goodman, equation 26: D_k = k - (k + 1) Y n_{k+1} / n_k with Y = n_1 / (n_1 + 2 n_2)."""
    n = [int(np.count_nonzero(adjusted == count)) for count in range(5)]
    if min(n[1:4]) > 0:
        y = n[1] / (n[1] + 2 * n[2])
        one, two, three = (k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
        if 0 <= one <= 1 and 0 <= two <= 2 and 0 <= three <= 3:
            return Discounts(one, two, three, is_fallback=False)
    one, two, three = FALLBACK_DISCOUNTS
    return Discounts(one, two, three, is_fallback=True)


def _smooth(
    prefixes: np.ndarray, adjusted: np.ndarray, is_kept: np.ndarray, discounts: Discounts, context_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each n-gram's discounted probability in its context [N], and the back-off weight of each context [contexts]."""
    table = np.array([0.0, discounts.one, discounts.two, discounts.three])
    taken = table[np.minimum(adjusted, 3)]
    totals = np.bincount(prefixes, adjusted, context_count)
    left = np.bincount(prefixes, np.where(is_kept, taken, adjusted), context_count)
    with np.errstate(invalid="ignore", divide="ignore"):
        backoffs = np.where(totals > 0, left / totals, 1.0)
        shares = np.where(is_kept, adjusted - taken, 0.0) / totals[prefixes]
    return np.nan_to_num(shares), backoffs
