"""PhraseTable: a phrase trie as a two-level table in which every transition is found without following failure arcs.

The labels of a state are cut into blocks. A state has one pointer per block and two offsets; a block holds the scores
and targets of its labels. States share a block if their transitions differ by an offset only, which is nearly
everywhere: a state has blocks of its own for the labels that follow it in some phrase. Host only.
"""

from typing import NamedTuple

import numpy as np

from penstock.scoring.boosting.trie import ROOT, PhraseTrie

MIN_BLOCK_LABELS = 16
"""Scores of one cache line."""
ENDS_WORD, CONTINUES_WORD = 0, 1
"""Columns of `PhraseTable.offsets`: for labels that end the word before them, and for those that continue it."""


class PhraseTable(NamedTuple):
    """N states and K blocks of L labels, P blocks per state. Numbers are the table's own; state 0 is the start.

    From state s label v scores `block_scores[k, v % L] + offsets[s, c]` and leads to `block_next[k, v % L]`, where
    k = `pointers[s, v // L]` and c is the label's class (`ENDS_WORD` or `CONTINUES_WORD`).
    """

    pointers: np.ndarray
    """[N, P] int64, 0 .. K-1"""
    offsets: np.ndarray
    """[N, 2] float32"""
    final: np.ndarray
    """[N] float32, score of ending."""
    block_scores: np.ndarray
    """[K, L] float32"""
    block_next: np.ndarray
    """[K, L] int64, 0 .. N-1"""


def block_labels(vocabulary_size: int) -> int:
    """L, a power of two. A state takes P pointers and about one block, least together where L is about sqrt(V / 2)."""
    return max(MIN_BLOCK_LABELS, 1 << (int((vocabulary_size / 2) ** 0.5) - 1).bit_length())


def build_table(trie: PhraseTrie, continues_word: np.ndarray) -> PhraseTable:
    """Lays out a trie; continues_word: [V] bool, as the trie was made with."""
    size = block_labels(len(continues_word))
    count = -(-len(continues_word) // size)
    word_class = np.zeros(count * size, np.int64)
    word_class[: len(continues_word)] = continues_word
    pointers = np.zeros((len(trie), count), np.int64)
    pointers[ROOT] = np.arange(count)
    offsets = np.zeros((len(trie), 2))
    blocks = _Blocks(word_class.reshape(count, size), len(trie))
    for depth, nodes in enumerate(trie.levels):
        # 1) a label without an arc leads where it leads from the failure node, with a back-off penalty
        if depth:
            fail = trie.fail.node[nodes]
            penalty = trie.fail.bonus[nodes] + trie.accumulated[fail] - trie.accumulated[nodes]
            pointers[nodes] = pointers[fail]
            offsets[nodes] = offsets[fail] + penalty[:, None]
            # 2) where a phrase is complete, a label that ends its word starts again at the root
            complete = np.flatnonzero(~np.isnan(trie.bonus[nodes])) + nodes.start
            offsets[complete, ENDS_WORD] = (trie.bonus - trie.accumulated)[complete]
            pointers[complete] = blocks.restarted(pointers[complete])
        # 3) the state's own arcs
        if depth + 1 < len(trie.levels):
            below = trie.levels[depth + 1]
            parent, label = trie.parent[below], trie.label[below]
            scores = trie.accumulated[below] - trie.accumulated[parent] - offsets[parent, word_class[label]]
            blocks.set_arcs(pointers, parent, label, scores, np.arange(below.start, below.stop))
    return PhraseTable(
        pointers=pointers,
        offsets=offsets.astype(np.float32),
        final=trie.final.astype(np.float32),
        block_scores=blocks.scores.astype(np.float32),
        block_next=blocks.next,
    )


class _Blocks:
    """Blocks while a table is built; the first P are the root's."""

    def __init__(self, word_class: np.ndarray, states: int):
        """word_class: [P, L] of each label; states: N."""
        count, size = word_class.shape
        # At most one block per arc, one restarted block for each of them, and the root's: memory is touched as used.
        limit = 2 * (count + states)
        self._count = count
        self._ends_word = word_class == ENDS_WORD
        self._scores = np.zeros((limit, size))
        self._next = np.zeros((limit, size), np.int64)  # ROOT
        self._column = np.zeros(limit, np.int64)  # v // L of a block's labels
        self._column[:count] = np.arange(count)
        self._restarted = np.full(limit, -1)  # see `restarted`; -1: not known yet
        self._restarted[:count] = np.arange(count)

    @property
    def scores(self) -> np.ndarray:
        """[K, L] float64"""
        return self._scores[: self._count]

    @property
    def next(self) -> np.ndarray:
        """[K, L] int64"""
        return self._next[: self._count]

    def set_arcs(
        self, pointers: np.ndarray, state: np.ndarray, label: np.ndarray, scores: np.ndarray, targets: np.ndarray
    ) -> None:
        """Gives `state` [A] arcs by `label` [A]; `pointers` [N, P] is changed where a state needs its own block."""
        count, size = self._ends_word.shape
        changed, which = np.unique(state * count + label // size, return_inverse=True)
        if state[0] != ROOT:  # the root's arcs come first, when nothing shares its blocks yet
            pointers.reshape(-1)[changed] = self._add(pointers.reshape(-1)[changed])
        block = pointers.reshape(-1)[changed][which]
        self._scores[block, label % size] = scores
        self._next[block, label % size] = targets

    def restarted(self, pointers: np.ndarray) -> np.ndarray:
        """Returns, for blocks `pointers` [n, P], those in which labels that end a word have the root's transitions."""
        used = np.unique(pointers)
        missing = used[self._restarted[used] < 0]
        column = self._column[missing]
        differs = (self._next[missing] != self._next[column]) | (self._scores[missing] != self._scores[column])
        # 1) keep a block if no label has to change; use the root's block if every other label has to
        is_same = ~(differs & self._ends_word[column]).any(axis=1)
        is_root = ~is_same & ~(differs & ~self._ends_word[column]).any(axis=1)
        self._restarted[missing[is_same]] = missing[is_same]
        self._restarted[missing[is_root]] = column[is_root]
        # 2) the others are mixed of both
        mixed = missing[~is_same & ~is_root]
        new, column = self._add(mixed), self._column[mixed]
        ends_word = self._ends_word[column]
        self._scores[new] = np.where(ends_word, self._scores[column], self._scores[mixed])
        self._next[new] = np.where(ends_word, self._next[column], self._next[mixed])
        self._restarted[mixed] = self._restarted[new] = new
        return self._restarted[pointers]

    def _add(self, sources: np.ndarray) -> np.ndarray:
        """Copies the blocks `sources` [n] and returns the numbers of the copies."""
        new = np.arange(self._count, self._count + len(sources))
        self._count += len(sources)
        self._scores[new], self._next[new] = self._scores[sources], self._next[sources]
        self._column[new] = self._column[sources]
        return new
