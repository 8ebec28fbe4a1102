"""DenseTable: a phrase trie as one row of scores and targets for every state. Host only.

The same arcs as a `PhraseTable` has, at more memory and less work.
"""

from typing import NamedTuple

import numpy as np

from penstock.fusion.phrase_trie import ROOT, PhraseTrie


class DenseTable(NamedTuple):
    """N states; state 0 is the start. Numbers of states are this table's own."""

    scores: np.ndarray
    """[N, V] float32"""
    next_states: np.ndarray
    """[N, V] int64"""
    final: np.ndarray
    """[N] float32, score of ending."""


def build_dense_table(trie: PhraseTrie, continues_word: np.ndarray) -> DenseTable:
    """continues_word: [V] bool, as the trie was made with."""
    scores = np.zeros((len(trie), len(continues_word)))
    next_states = np.zeros(scores.shape, np.int64)
    for depth, nodes in enumerate(trie.levels):
        if depth > 0:
            _fail(trie, continues_word, nodes, scores, next_states)
        if depth + 1 < len(trie.levels):
            below = trie.levels[depth + 1]
            parent, label = trie.parent[below], trie.label[below]
            scores[parent, label] = trie.booked[below] - trie.booked[parent]
            next_states[parent, label] = np.arange(below.start, below.stop)
    return DenseTable(scores.astype(np.float32), next_states, trie.final.astype(np.float32))


def _fail(
    trie: PhraseTrie, continues_word: np.ndarray, nodes: slice, scores: np.ndarray, next_states: np.ndarray
) -> None:
    """Fills in the rows of `nodes`, all of one depth, for labels that they have no arcs for."""
    fail = trie.fail.node[nodes]
    paid_back = trie.fail.earned[nodes] + trie.booked[fail] - trie.booked[nodes]
    scores[nodes] = scores[fail] + paid_back[:, None]
    next_states[nodes] = next_states[fail]
    # Where a phrase ends, a label that ends its word starts afresh; any other fails as it would elsewhere.
    ended = np.flatnonzero(~np.isnan(trie.bonus[nodes])) + nodes.start
    ends_word = np.flatnonzero(~continues_word)
    scores[np.ix_(ended, ends_word)] = scores[ROOT, ends_word] + (trie.bonus - trie.booked)[ended, None]
    next_states[np.ix_(ended, ends_word)] = next_states[ROOT, ends_word]
