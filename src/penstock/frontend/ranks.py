"""Order among equal entries of an array: the rows of one stream in a batch."""

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """[n] int64: how many earlier entries of `values` [n] are equal to each."""
    if len(values) < 2:  # a stream alone: nothing to sort
        return np.zeros(len(values), np.int64)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.arange(len(values))
    is_first = np.ones(len(values), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found = np.empty_like(place)
    found[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return found
