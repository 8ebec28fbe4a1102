"""Best paths through a decoding graph without any pruning: over the file's arrays, and by OpenFst."""

from collections.abc import Sequence
from typing import NamedTuple

import kaldifst
import numpy as np

from penstock.scoring.wfst.building.fst_arrays import FstArrays, join_arcs, to_fst
from penstock.scoring.wfst.graph_file import DecodingGraph


class BestPath(NamedTuple):
    """cost: inf where there is no path."""

    cost: float
    words: tuple[int, ...]


def random_costs(frames: int, vocabulary_size: int, seed: int, likely: int = 4) -> np.ndarray:
    """Emission costs [T, V + 1] float32, -log p, in which `likely` labels a frame share most of the probability."""
    chance = np.random.RandomState(seed)
    scores = chance.normal(size=(frames, vocabulary_size + 1))
    for row in scores:
        row[chance.choice(vocabulary_size + 1, likely, replace=False)] += 6
    return (np.log(np.exp(scores).sum(1, keepdims=True)) - scores).astype(np.float32)


def only(labels: Sequence[int], vocabulary_size: int) -> np.ndarray:
    """Costs [T, V + 1] of frames that are certain of `labels`."""
    costs = np.full((len(labels), vocabulary_size + 1), np.inf, np.float32)
    costs[np.arange(len(labels)), labels] = 0
    return costs


def best_path(graph: DecodingGraph, costs: np.ndarray) -> BestPath:
    """The best path over the arrays for emission costs [T, V + 1]: all states, float64."""
    sources = np.repeat(np.arange(graph.state_count), np.diff(graph.arc_offsets))
    origins = np.repeat(np.arange(graph.state_count), np.diff(graph.closure_offsets))
    reached = np.full(graph.state_count, np.inf)
    reached[graph.start_state] = 0
    steps = []

    def step(froms: np.ndarray, targets: np.ndarray, words: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Every state's best arc among `targets`; remembers where it came from and with which word."""
        live = np.flatnonzero(np.isfinite(reached[froms]))
        froms, targets, words, weights = (column[live] for column in (froms, targets, words, weights))
        live = np.flatnonzero(np.isfinite(weights))
        froms, targets, words, total = froms[live], targets[live], words[live], reached[froms[live]] + weights[live]
        order = np.lexsort((total, targets))
        first = order[np.diff(targets[order], prepend=-1) != 0]
        result, back = np.full(graph.state_count, np.inf), np.empty((graph.state_count, 2), np.int32)
        result[targets[first]] = total[first]
        back[targets[first]] = np.stack([froms[first], words[first]], 1)
        steps.append(back)
        return result

    closure = (origins, graph.closure_targets, graph.closure_words, graph.closure_weights)
    reached = step(*closure)
    for frame in costs:
        reached = step(
            sources, graph.arc_targets, graph.arc_words, graph.arc_weights.astype(np.float64) + frame[graph.arc_labels]
        )
        reached = step(*closure)
    total = reached + graph.final_weights
    state = int(total.argmin())
    cost = float(total[state])
    words: list[int] = []
    for back in reversed(steps if np.isfinite(cost) else []):
        state, word = back[state]
        words += [int(word)] * bool(word)
    return BestPath(cost, tuple(words[::-1]))


def openfst_best_path(fst: "FstArrays | kaldifst.StdVectorFst", costs: np.ndarray) -> BestPath:
    """OpenFst's shortest path through the emissions composed with a graph's transducer."""
    if isinstance(fst, FstArrays):
        fst = to_fst(fst)
    frames, labels = np.nonzero(np.isfinite(costs))
    finals = np.where(np.arange(len(costs) + 1) == len(costs), 0.0, np.inf)
    emissions = join_arcs(0, finals, (frames, labels + 1, labels + 1, costs[frames, labels], frames + 1))
    paths = kaldifst.compose(to_fst(emissions), fst)
    best = kaldifst.shortest_path(paths)
    if best.start < 0:
        return BestPath(np.inf, ())
    found, _, words, weight = kaldifst.get_linear_symbol_sequence(best)
    assert found
    return BestPath(float(getattr(weight, "value", weight)), tuple(words))
