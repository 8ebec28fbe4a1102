"""Interpolated modified Kneser-Ney smoothing of n-gram counts (Chen & Goodman 1998, section 4.4.6; for the form with
pruning, Heafield et al. 2013). Knows numbers, not words.

As in KenLM's `lmplz`: unigrams are interpolated with the uniform distribution; n-grams that start a sentence keep their
counts; what pruning takes away goes to the back-off, so that every context still sums to one.
"""

from typing import NamedTuple

import numpy as np

from penstock.lm_training.ngram_counts import OrderCounts

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


class Discounts(NamedTuple):
    """What is taken from a count of 1, of 2, and of 3 and more."""

    one: float
    two: float
    three: float
    is_fallback: bool
    """True where the text is too small, or too odd, for the formula."""


class OrderEstimate(NamedTuple):
    """Probabilities of one order's n-grams, rows as in `OrderCounts`."""

    probabilities: np.ndarray
    """[N] float64, interpolated: these are the final ones. The begin of a sentence has 1, as KenLM writes it."""
    backoffs: np.ndarray
    """[N] float64: weight of the order below after this context; 1 where nothing follows it."""
    is_kept: np.ndarray
    """[N] bool: False where pruned."""
    discounts: Discounts


def estimate(orders: list[OrderCounts], prune: list[int], begin: int, is_possible: np.ndarray) -> list[OrderEstimate]:
    """Estimates every order.

    N-grams seen `prune[n - 1]` times or fewer are left out; the numbers must not fall with the order, and order 1 keeps
    everything. `is_possible` [W] bool says which words share the uniform distribution: all but `begin` and those
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
    """How many different words come before an n-gram; how often it comes, at the highest order and after `<s>`."""
    if above is None:
        return order.counts
    different = np.bincount(above.suffixes, minlength=len(order.words))
    return np.where(order.is_first, order.counts, different)


def _find_discounts(adjusted: np.ndarray) -> Discounts:
    """Chen & Goodman, equation 26: D_k = k - (k + 1) Y n_{k+1} / n_k with Y = n_1 / (n_1 + 2 n_2)."""
    n = [int(np.count_nonzero(adjusted == count)) for count in range(5)]
    if min(n[1:4]) > 0:
        y = n[1] / (n[1] + 2 * n[2])
        discounts = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
        if all(0 <= discount <= k for k, discount in enumerate(discounts, start=1)):
            return Discounts(*discounts, is_fallback=False)
    return Discounts(*FALLBACK_DISCOUNTS, is_fallback=True)


def _smooth(
    prefixes: np.ndarray, adjusted: np.ndarray, is_kept: np.ndarray, discounts: Discounts, context_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each n-gram's discounted share of its context [N], and what each context has left to give [contexts]."""
    table = np.array([0.0, discounts.one, discounts.two, discounts.three])
    taken = table[np.minimum(adjusted, 3)]
    totals = np.bincount(prefixes, adjusted, context_count)
    left = np.bincount(prefixes, np.where(is_kept, taken, adjusted), context_count)
    with np.errstate(invalid="ignore", divide="ignore"):
        backoffs = np.where(totals > 0, left / totals, 1.0)
        shares = np.where(is_kept, adjusted - taken, 0.0) / totals[prefixes]
    return np.nan_to_num(shares), backoffs
