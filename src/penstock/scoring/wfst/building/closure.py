"""The min-plus closure of epsilon arcs: what each state reaches without a frame, with which word, at what cost."""

from typing import NamedTuple

import numpy as np

from penstock.errors import GraphError
from penstock.scoring.wfst.building.fst_arrays import FstArrays


class Closure(NamedTuple):
    """Entries of all states as a CSR; see `DecodingGraph.closure_offsets` and the arrays below it."""

    offsets: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    words: np.ndarray


class _Paths(NamedTuple):
    """The least cost of the paths of one length between two states with one word."""

    origins: np.ndarray
    targets: np.ndarray
    words: np.ndarray
    costs: np.ndarray


def close(epsilons: FstArrays) -> Closure:
    """The closure of a graph's epsilon arcs, outputs being words.

    GraphError for a cycle and for a path with two words: the search takes at most one word in a closure.
    """
    _reject_cycles(epsilons)
    by_source = epsilons.select(np.argsort(epsilons.sources, kind="stable"))
    offsets = np.searchsorted(by_source.sources, np.arange(epsilons.state_count + 1))
    every, zeros = np.arange(epsilons.state_count), np.zeros(epsilons.state_count, np.int64)
    paths = _Paths(every, every, zeros, zeros.astype(np.float64))
    all_paths = [paths]
    while len((paths := _extend(paths, by_source, offsets)).origins):
        all_paths.append(paths)
    entries = _least(_Paths(*(np.concatenate(column) for column in zip(*all_paths, strict=True))))
    return Closure(
        np.searchsorted(entries.origins, np.arange(epsilons.state_count + 1)).astype(np.int32),
        entries.targets.astype(np.int32),
        entries.costs.astype(np.float32),
        entries.words.astype(np.int32),
    )


def _extend(paths: _Paths, epsilons: FstArrays, offsets: np.ndarray) -> _Paths:
    """The paths that are one arc longer."""
    first = offsets[paths.targets]
    counts = offsets[paths.targets + 1] - first
    rows = np.repeat(np.arange(len(counts)), counts)
    arcs = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]
    words, new_words = paths.words[rows], epsilons.outputs[arcs].astype(np.int64)
    if ((words > 0) & (new_words > 0)).any():
        raise GraphError("a path of epsilon arcs carries two words")
    longer = _Paths(
        paths.origins[rows],
        epsilons.targets[arcs].astype(np.int64),
        words + new_words,
        paths.costs[rows] + epsilons.weights[arcs].astype(np.float64),
    )
    return _least(longer)


def _least(paths: _Paths) -> _Paths:
    """The cheapest path per (origin, target, word), sorted by these; a state's own entry comes first."""
    is_other = (paths.targets != paths.origins) | (paths.words != 0)
    order = np.lexsort((paths.costs, paths.words, paths.targets, is_other, paths.origins))
    origins, targets, words, _ = (column[order] for column in paths)
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(origins) != 0) | (np.diff(targets) != 0) | (np.diff(words) != 0)
    return _Paths(*(column[order[is_first]] for column in paths))


def _reject_cycles(epsilons: FstArrays) -> None:
    """Takes away states without epsilon arcs until none is left (Kahn 1962, from the ends)."""
    sources, targets = epsilons.sources, epsilons.targets
    while len(sources):
        goes_on = np.zeros(epsilons.state_count, bool)
        goes_on[sources] = True
        stays = goes_on[targets]
        if stays.all():
            raise GraphError("the graph has a cycle of epsilon arcs")
        sources, targets = sources[stays], targets[stays]
