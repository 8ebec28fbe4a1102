"""Every word sequence of a decoding graph within a beam of the best, by all paths: no recombination, no pruning."""

from typing import NamedTuple

import numpy as np

from penstock.scoring.wfst.graph_file import DecodingGraph


class WordSequence(NamedTuple):
    cost: float
    """The cost of its best path."""
    words: tuple[int, ...]


def word_sequences(
    graph: DecodingGraph,
    log_probs: np.ndarray,
    beam: float,
    lm_weight: float = 1 / 3,
    word_boosts: np.ndarray | None = None,
) -> list[WordSequence]:
    """In order of cost; none where no path ends in a final state. log_probs: [T, V + 1], blank last.

    Forwards each state has the cost of each word sequence to it. Sequences are left out only where even the best way
    from there to the end, known from a pass backwards, is beyond the beam.
    """
    boosts = np.zeros(len(graph.words)) if word_boosts is None else word_boosts.astype(np.float64)
    weight = float(np.float32(lm_weight))
    arcs = _Ways(graph.arc_offsets, graph.arc_targets, graph.arc_words, weight * graph.arc_weights)
    closure = _Ways(graph.closure_offsets, graph.closure_targets, graph.closure_words, weight * graph.closure_weights)
    # 1) backwards: the least cost to the end from before each pass, [S]
    passes = [(closure, np.zeros(len(graph.closure_targets)))]
    for scores in np.asarray(log_probs, np.float64):
        passes += [(arcs, -scores[graph.arc_labels]), (closure, np.zeros(len(graph.closure_targets)))]
    after = [weight * graph.final_weights.astype(np.float64)]
    for ways, costs in reversed(passes):
        ahead = np.full(graph.state_count, np.inf)
        np.minimum.at(ahead, ways.sources, ways.weights - boosts[ways.words] + costs + after[-1][ways.targets])
        after.append(ahead)
    after.reverse()
    limit = after[0][graph.start_state] + beam
    # 2) forwards: costs of word sequences by state
    reached: dict[int, dict[tuple[int, ...], float]] = {graph.start_state: {(): 0.0}}
    for (ways, costs), ahead in zip(passes, after[1:], strict=True):
        before, reached = reached, {}
        for state, found in before.items():
            for entry in range(ways.offsets[state], ways.offsets[state + 1]):
                word, target = int(ways.words[entry]), int(ways.targets[entry])
                more = ways.weights[entry] - boosts[word] + costs[entry]
                for words, cost in found.items():
                    total = cost + more
                    if total + ahead[target] <= limit:
                        extended = (*words, word) if word else words
                        of_target = reached.setdefault(target, {})
                        of_target[extended] = min(total, of_target.get(extended, np.inf))
    # 3) the best of each
    best: dict[tuple[int, ...], float] = {}
    for state, found in reached.items():
        for words, cost in found.items():
            best[words] = min(cost + after[-1][state], best.get(words, np.inf))
    return sorted(WordSequence(float(cost), words) for words, cost in best.items() if cost <= limit)


class _Ways:
    """Entries of a CSR, with their sources."""

    def __init__(self, offsets: np.ndarray, targets: np.ndarray, words: np.ndarray, weights: np.ndarray):
        self.offsets, self.targets, self.words, self.weights = offsets, targets, words, weights.astype(np.float64)
        self.sources = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
