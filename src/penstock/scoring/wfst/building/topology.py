"""T∘LG for the CTC topologies of Laptev et al. 2022 (arXiv 2110.03098), composed directly.

A state of T∘LG is a state of LG with the token that the last frame held, or none after a blank. Composition with a
transducer T would give the same graph, but T of the normal topology has V² arcs.
"""

import numpy as np

from penstock.errors import GraphError
from penstock.scoring.wfst.building.fst_arrays import EPSILON, FstArrays, join_arcs
from penstock.scoring.wfst.graph_file import Topology

MAX_ARCS = 100_000_000
"""The most arcs of T∘LG. In the normal topology every piece that ends a word has an arc to every other piece that
begins one, so a large vocabulary may have millions of them in one state of LG."""
_NOT_HELD = 0


def compose_topology(lg: FstArrays, topology: Topology, vocabulary_size: int) -> FstArrays:
    """T∘LG. Inputs of `lg`: token + 1, or epsilon for every other label; those of the result also blank, V + 1.

    normal: a token follows itself only after a blank; a repeat is the same token held on. compact: it may follow itself
    at once, so T has an epsilon arc from every held token back to its start. GraphError above `MAX_ARCS`.
    """
    blank, width = vocabulary_size + 1, vocabulary_size + 1
    is_epsilon = lg.inputs == EPSILON
    tokens, epsilons = lg.select(~is_epsilon), lg.select(is_epsilon)
    # 1) states as keys: LG's state * (V + 1) + what is held
    none = np.arange(lg.state_count, dtype=np.int64) * width
    held = np.unique(tokens.targets.astype(np.int64) * width + tokens.inputs)
    if topology == "normal":
        held = _follow(held, epsilons, width)
    keys = np.sort(np.concatenate([none, held]))
    states, holds = keys // width, keys % width
    every, is_held = np.arange(len(keys)), holds != _NOT_HELD
    # 2) what T adds: a held token goes on; a blank drops it, or in the compact topology an epsilon arc
    repeats = (every[is_held], holds[is_held], EPSILON, 0.0, every[is_held])
    without = np.searchsorted(keys, states * width)
    if topology == "normal":
        blanks = [(every, blank, EPSILON, 0.0, without)]
        free = every
    else:
        free = every[~is_held]
        blanks = [(free, blank, EPSILON, 0.0, free), (every[is_held], EPSILON, EPSILON, 0.0, without[is_held])]
    # 3) LG's arcs from every state where T lets a new token begin
    _check_size(states[free], tokens, topology)
    rows, arcs = _leaving(states[free], tokens)
    is_new = holds[free][rows] != tokens.inputs[arcs]
    new = _arcs(free[rows[is_new]], tokens, arcs[is_new], keys, tokens.inputs[arcs[is_new]], width)
    rows, arcs = _leaving(states[free], epsilons)
    through = _arcs(free[rows], epsilons, arcs, keys, holds[free][rows], width)
    final_weights = np.where(np.isin(every, free), lg.final_weights[states], np.inf)
    return join_arcs(int(np.searchsorted(keys, lg.start * width)), final_weights, repeats, *blanks, new, through)


def _check_size(states: np.ndarray, tokens: FstArrays, topology: Topology) -> None:
    """Rejects what would not fit into memory before it is made."""
    leaving = np.bincount(tokens.sources, minlength=int(states.max(initial=0)) + 1)
    count = int(leaving[states].sum(dtype=np.int64))
    if count > MAX_ARCS:
        hint = ", or --topology compact, which has an arc per piece" if topology == "normal" else ""
        raise GraphError(
            f"with the {topology} CTC topology the graph has {count:,} arcs; accepted: up to {MAX_ARCS:,}: fewer words "
            f"or n-grams{hint}"
        )


def _follow(held: np.ndarray, epsilons: FstArrays, width: int) -> np.ndarray:
    """The keys `held` and all that epsilon arcs of LG lead to from them: nothing consumes a frame there."""
    new = held
    while len(new):
        rows, arcs = _leaving(new // width, epsilons)
        reached = np.unique(epsilons.targets[arcs].astype(np.int64) * width + new[rows] % width)
        new = np.setdiff1d(reached, held, assume_unique=True)
        held = np.union1d(held, new)
    return held


def _leaving(states: np.ndarray, fst: FstArrays) -> tuple[np.ndarray, np.ndarray]:
    """All arcs that leave `states`: which of the states, and which arc of `fst` (sorted by source)."""
    first = np.searchsorted(fst.sources, states, side="left")
    counts = np.searchsorted(fst.sources, states, side="right") - first
    rows = np.repeat(np.arange(len(states)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]


def _arcs(
    sources: np.ndarray, lg: FstArrays, arcs: np.ndarray, keys: np.ndarray, holds: np.ndarray, width: int
) -> tuple[np.ndarray, ...]:
    """Columns of `join_arcs` for arcs of LG that lead to a state that holds `holds`."""
    targets = np.searchsorted(keys, lg.targets[arcs].astype(np.int64) * width + holds)
    return sources, lg.inputs[arcs], lg.outputs[arcs], lg.weights[arcs], targets
