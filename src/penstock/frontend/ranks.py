"""Order among equal entries of an array: the rows of one stream in a batch."""

from collections.abc import Iterator

import numpy as np


def sums_before(values: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """[n] int64: the sum of `amounts` [n] int64 over the earlier entries of `values` [n] that are equal to each."""
    if len(values) < 2:  # a stream alone: nothing to sort
        return np.zeros(len(values), np.int64)
    order = np.argsort(values, kind="stable")
    ordered, dealt = values[order], amounts[order]
    before = dealt.cumsum() - dealt
    is_first = np.ones(len(values), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    sums = np.empty_like(before)
    sums[order] = before - np.maximum.accumulate(np.where(is_first, before, 0))
    return sums


def ranks(values: np.ndarray) -> np.ndarray:
    """[n] int64: how many earlier entries of `values` [n] are equal to each."""
    return sums_before(values, np.ones(len(values), np.int64))


def rounds(values: np.ndarray) -> Iterator[np.ndarray]:
    """Places [k] int64 of `values` [n], ascending: of the first of all equal entries, then of the second, and so on."""
    if len(values) < 2:
        if len(values):
            yield np.zeros(1, np.int64)
        return
    rank = ranks(values)
    for number in range(int(rank.max()) + 1):
        yield (rank == number).nonzero()[0]
