"""Token phrases as a prefix tree with failure arcs (Aho and Corasick 1975), and the tree as a table. Host only.

The rule is *leftmost longest at word ends* (docs/boosting.md): reading from the left, the first phrase that is complete
at a word end gets its bonus, the longest if several begin at one token, and reading continues after it. The bonus of
a phrase is its boost times its tokens. All nodes of one depth are computed together, in numpy: streams wait while a
list is built.

In the table every transition is found without following failure arcs. It has two levels: the labels of a state are cut
into blocks, and a state has one pointer per block and two offsets; a block holds the scores and targets of its labels.
States share a block if their transitions differ by an offset only, which is nearly everywhere: a state has blocks of
its own for the labels that follow it in some phrase.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock.scoring.boosting.phrases import TokenPhrase

ROOT = 0
MIN_BLOCK_LABELS = 16
"""Scores of one cache line."""
ENDS_WORD, CONTINUES_WORD = 0, 1
"""Columns of `PhraseTable.offsets`: for labels that end the word before them, and for those that continue it."""


class Failure(NamedTuple):
    """The position at which matching continues after a node has failed to match; fields [n]."""

    node: np.ndarray
    """int64"""
    bonus: np.ndarray
    """float64, bonuses of the phrases that are complete in the labels dropped."""


class PhraseTrie:
    """Nodes 0 .. N-1 in order of depth, ROOT first. A node stands for the labels on the way from the root to it.

    `accumulated[node]` is the score that a path has for these labels: the bonus of the phrase that they are, or the
    bonus so far of the best longer phrase, whichever is more. An arc's score is the difference that it makes to the
    accumulated score and the bonuses of complete phrases, so a path's scores always add up to these.
    """

    parent: np.ndarray
    """[N] int64, ROOT for ROOT."""
    label: np.ndarray
    """[N] int64, of the arc into the node; 0 for ROOT."""
    levels: list[slice]
    """The nodes of each depth, from 0."""
    bonus: np.ndarray
    """[N] float64, of the phrase that ends at the node; NaN where none does."""
    fail: Failure
    """[N], where a label without an arc is read, if it continues a word or no phrase ends at the node."""
    accumulated: np.ndarray
    """[N] float64"""
    final: np.ndarray
    """[N] float64, score of ending."""

    start = ROOT
    """The node at which a stream starts."""

    def __init__(
        self,
        phrases: Sequence[TokenPhrase],
        continues_word: Sequence[bool] | np.ndarray,
        separator: int | None = None,
    ):
        """phrases: distinct token sequences; continues_word: for each label, True where no word ends before it.

        separator: the label that every phrase follows, and that adds nothing; a stream starts behind it.
        """
        self._continues_word = np.asarray(continues_word, dtype=bool)
        self._grow(phrases, separator)
        # Nodes are numbered by parent and label, so these are in order.
        self._arcs = self.parent[1:] * len(self._continues_word) + self.label[1:]
        self._root_children = np.full(len(self._continues_word), ROOT)
        if len(self.levels) > 1:
            self._root_children[self.label[self.levels[1]]] = np.arange(len(self))[self.levels[1]]
        self._add_failures()

    def __len__(self) -> int:
        return len(self.parent)

    def _grow(self, phrases: Sequence[TokenPhrase], separator: int | None) -> None:
        """Adds the nodes level by level: one for each label that follows a node in some phrase."""
        size = len(self._continues_word)
        lengths = np.array([len(phrase.tokens) for phrase in phrases], np.int64)
        boosts = np.array([phrase.boost for phrase in phrases], np.float64)
        tokens = np.fromiter(chain.from_iterable(phrase.tokens for phrase in phrases), np.int64, lengths.sum())
        starts = np.cumsum(lengths) - lengths
        parents, labels, self.levels = [np.array([ROOT])], [np.array([0])], [slice(0, 1)]
        count = 1
        best_of, ends_at = [np.array([-np.inf])], np.zeros(len(phrases), np.int64)
        if separator is not None:
            self.start, count = 1, 2
            parents.append(np.array([ROOT]))
            labels.append(np.array([separator]))
            self.levels.append(slice(1, 2))
            best_of.append(np.array([-np.inf]))
        at = np.full(len(phrases), self.start)  # the node of each phrase's first labels
        live = np.arange(len(phrases))
        for depth in range(1, int(lengths.max(initial=0)) + 1):
            # 1) one node for each different pair of parent and label
            arcs, which = np.unique(at[live] * size + tokens[starts[live] + depth - 1], return_inverse=True)
            parents.append(arcs // size)
            labels.append(arcs % size)
            at[live] = count + which
            # 2) phrases that end here; the others give their bonus so far
            is_end = lengths[live] == depth
            ends_at[live[is_end]] = at[live[is_end]]
            continues = ~is_end & (boosts[live] > 0)  # a penalty would lower every word that begins alike
            best = np.full(len(arcs), -np.inf)
            np.maximum.at(best, which[continues], boosts[live[continues]])
            best_of.append(depth * best)
            self.levels.append(slice(count, count + len(arcs)))
            count += len(arcs)
            live = live[~is_end]
        self.parent, self.label = np.concatenate(parents), np.concatenate(labels)
        self.bonus = np.full(count, np.nan)
        self.bonus[ends_at] = lengths * boosts
        self._bonus_so_far = np.concatenate(best_of)

    def _add_failures(self) -> None:
        """Failure arcs and scores in order of depth: a failure arc leads to a node less deep."""
        count = len(self)
        self.fail = Failure(np.full(count, ROOT), np.zeros(count))
        self.accumulated, self.final = np.zeros(count), np.zeros(count)
        ended = np.zeros(count)  # score of a node's labels if nothing follows
        for depth, nodes in enumerate(self.levels[1:], start=1):
            if depth > 1:
                parent, label = self.parent[nodes], self.label[nodes]
                self.fail.node[nodes], self.fail.bonus[nodes] = self._go(self._drop(parent, label), label)
            fail, dropped, bonus = self.fail.node[nodes], self.fail.bonus[nodes], self.bonus[nodes]
            without_longer = np.where(np.isnan(bonus), dropped + self.accumulated[fail], bonus)
            self.accumulated[nodes] = np.maximum(without_longer, self._bonus_so_far[nodes])
            ended[nodes] = np.where(np.isnan(bonus), dropped + ended[fail], bonus)
            self.final[nodes] = ended[nodes] - self.accumulated[nodes]

    def _drop(self, node: np.ndarray, label: np.ndarray) -> Failure:
        """Reads `label` where `node` has no arc for it: a complete phrase gets its bonus, else one label is dropped."""
        bonus = self.bonus[node]
        is_complete = ~np.isnan(bonus) & ~self._continues_word[label]
        return Failure(
            np.where(is_complete, ROOT, self.fail.node[node]), np.where(is_complete, bonus, self.fail.bonus[node])
        )

    def _go(self, start: Failure, label: np.ndarray) -> Failure:
        """The node that `label` leads to from `start`, through as many failure arcs as it takes."""
        node, bonus = start.node, start.bonus
        targets = np.full(len(node), ROOT)
        open_ = np.arange(len(node))
        while len(open_):
            at, via = node[open_], label[open_]
            child = self._child(at, via)
            targets[open_] = child
            is_open = (child == ROOT) & (at != ROOT)
            open_ = open_[is_open]
            dropped = self._drop(at[is_open], via[is_open])
            node[open_] = dropped.node
            bonus[open_] += dropped.bonus
        return Failure(targets, bonus)

    def _child(self, node: np.ndarray, label: np.ndarray) -> np.ndarray:
        """The node that `label` leads to; ROOT if there is none."""
        child = self._root_children[label]
        is_deep = node != ROOT
        arc = node[is_deep] * len(self._continues_word) + label[is_deep]
        place = np.searchsorted(self._arcs, arc)
        is_there = self._arcs[np.minimum(place, len(self._arcs) - 1)] == arc
        child[is_deep] = np.where(is_there, place + 1, ROOT)
        return child


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
