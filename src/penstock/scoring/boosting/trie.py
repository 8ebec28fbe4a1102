"""PhraseTrie: token phrases as a prefix tree with failure arcs (Aho and Corasick 1975), and each node's score.

The rule is *leftmost longest at word ends* (docs/boosting.md): reading from the left, the first phrase that is complete
at a word end gets its bonus, the longest if several begin at one token, and reading continues after it. The bonus of
a phrase is its boost times its tokens. All nodes of one depth are computed together, in numpy: streams wait while a
list is built.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock.scoring.boosting.phrases import TokenPhrase

ROOT = 0


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

    def __init__(self, phrases: Sequence[TokenPhrase], continues_word: Sequence[bool] | np.ndarray):
        """phrases: distinct token sequences; continues_word: for each label, True where no word ends before it."""
        self._continues_word = np.asarray(continues_word, dtype=bool)
        self._grow(phrases)
        # Nodes are numbered by parent and label, so these are in order.
        self._arcs = self.parent[1:] * len(self._continues_word) + self.label[1:]
        self._root_children = np.full(len(self._continues_word), ROOT)
        if len(self.levels) > 1:
            self._root_children[self.label[self.levels[1]]] = np.arange(len(self))[self.levels[1]]
        self._add_failures()

    def __len__(self) -> int:
        return len(self.parent)

    def _grow(self, phrases: Sequence[TokenPhrase]) -> None:
        """Adds the nodes level by level: one for each label that follows a node in some phrase."""
        size = len(self._continues_word)
        lengths = np.array([len(phrase.tokens) for phrase in phrases], np.int64)
        boosts = np.array([phrase.boost for phrase in phrases], np.float64)
        tokens = np.fromiter(chain.from_iterable(phrase.tokens for phrase in phrases), np.int64, lengths.sum())
        starts = np.cumsum(lengths) - lengths
        parents, labels, self.levels = [np.array([ROOT])], [np.array([0])], [slice(0, 1)]
        at = np.zeros(len(phrases), np.int64)  # the node of each phrase's first labels
        live = np.arange(len(phrases))
        best_of, ends_at = [np.array([-np.inf])], np.zeros(len(phrases), np.int64)
        count = 1
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
