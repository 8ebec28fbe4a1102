"""PhraseTrie: token phrases as a prefix tree with failure arcs (Aho and Corasick 1975), and what each node is worth.

The rule is *leftmost longest at word ends* (docs/boosting.md): reading from the left, the first phrase that is complete
where a word ends earns its bonus, the longest where several begin at one token, and reading goes on behind it. A phrase
is one run of labels; its bonus is its boost times its tokens. Knows no tensors. All nodes of one depth are worked out
together: a list is made ready while streams wait.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock.fusion.phrase_tokens import TokenPhrase

ROOT = 0


class Settled(NamedTuple):
    """Where reading stands once the front of what was read can match no more; fields [n]."""

    node: np.ndarray
    """int64"""
    earned: np.ndarray
    """float64, bonuses of the phrases that were complete in what has been dropped."""


class PhraseTrie:
    """Nodes 0 .. N-1 in order of depth, ROOT first. A node stands for the labels on the way from the root to it.

    `booked[node]` is what a path has been given so far for these labels: the bonus of the phrase they are, or what the
    best longer phrase lends for the part that is there, whichever is more. An arc's score is the difference that it
    makes to what is booked and earned, so a path's scores always add up to bonuses earned plus what is booked.
    """

    parent: np.ndarray
    """[N] int64, ROOT for ROOT."""
    label: np.ndarray
    """[N] int64, of the arc into the node; 0 for ROOT."""
    levels: list[slice]
    """The nodes of each depth, from 0."""
    bonus: np.ndarray
    """[N] float64, of the phrase that the node is; NaN where it is none."""
    fail: Settled
    """[N], how a label without an arc is read on, if it carries on a word or the node is no phrase."""
    booked: np.ndarray
    """[N] float64"""
    final: np.ndarray
    """[N] float64, score of ending."""

    def __init__(self, phrases: Sequence[TokenPhrase], continues_word: Sequence[bool]):
        """phrases: distinct token sequences; continues_word: for each label, True where no word ends before it."""
        self._continues_word = np.asarray(continues_word, dtype=bool)
        self._grow(phrases)
        # Nodes are numbered by parent and label, so these are in order.
        self._arcs = self.parent[1:] * len(self._continues_word) + self.label[1:]
        self._root_children = np.full(len(self._continues_word), ROOT)
        if len(self.levels) > 1:
            self._root_children[self.label[self.levels[1]]] = np.arange(len(self))[self.levels[1]]
        self._settle()

    def __len__(self) -> int:
        return len(self.parent)

    def _grow(self, phrases: Sequence[TokenPhrase]) -> None:
        """Makes the nodes level by level: one for each label that follows a node in some phrase."""
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
            arcs, which = np.unique(at[live] * size + tokens[starts[live] + depth - 1], return_inverse=True)
            parents.append(arcs // size)
            labels.append(arcs % size)
            at[live] = count + which
            is_end = lengths[live] == depth
            ends_at[live[is_end]] = at[live[is_end]]
            lends = ~is_end & (boosts[live] > 0)  # a penalty is not lent: it would hit every word that begins alike
            best = np.full(len(arcs), -np.inf)
            np.maximum.at(best, which[lends], boosts[live[lends]])
            best_of.append(depth * best)
            self.levels.append(slice(count, count + len(arcs)))
            count += len(arcs)
            live = live[~is_end]
        self.parent, self.label = np.concatenate(parents), np.concatenate(labels)
        self.bonus = np.full(count, np.nan)
        self.bonus[ends_at] = lengths * boosts
        self._lent = np.concatenate(best_of)

    def _settle(self) -> None:
        """Failure arcs and values in order of depth: a failure arc leads to a node less deep."""
        count = len(self)
        self.fail = Settled(np.full(count, ROOT), np.zeros(count))
        self.booked, self.final = np.zeros(count), np.zeros(count)
        ended = np.zeros(count)  # what the labels of a node are worth if nothing follows
        for depth, nodes in enumerate(self.levels[1:], start=1):
            if depth > 1:
                parent, label = self.parent[nodes], self.label[nodes]
                self.fail.node[nodes], self.fail.earned[nodes] = self._go(self._drop(parent, label), label)
            fail, earned, bonus = self.fail.node[nodes], self.fail.earned[nodes], self.bonus[nodes]
            as_it_stands = np.where(np.isnan(bonus), earned + self.booked[fail], bonus)
            self.booked[nodes] = np.maximum(as_it_stands, self._lent[nodes])
            ended[nodes] = np.where(np.isnan(bonus), earned + ended[fail], bonus)
            self.final[nodes] = ended[nodes] - self.booked[nodes]

    def _drop(self, node: np.ndarray, label: np.ndarray) -> Settled:
        """Gives up that `node` grows by `label`: what is complete in front is earned, or the first label is dropped."""
        bonus = self.bonus[node]
        is_earned = ~np.isnan(bonus) & ~self._continues_word[label]
        return Settled(
            np.where(is_earned, ROOT, self.fail.node[node]), np.where(is_earned, bonus, self.fail.earned[node])
        )

    def _go(self, start: Settled, label: np.ndarray) -> Settled:
        """Where `label` leads from `start`, through as many failure arcs as it takes."""
        node, earned = start.node, start.earned
        found = np.full(len(node), ROOT)
        open_ = np.arange(len(node))
        while len(open_):
            at, via = node[open_], label[open_]
            child = self._child(at, via)
            found[open_] = child
            is_open = (child == ROOT) & (at != ROOT)
            open_ = open_[is_open]
            dropped = self._drop(at[is_open], via[is_open])
            node[open_] = dropped.node
            earned[open_] += dropped.earned
        return Settled(found, earned)

    def _child(self, node: np.ndarray, label: np.ndarray) -> np.ndarray:
        """The node that `label` leads to; ROOT where there is none."""
        child = self._root_children[label]
        is_deep = node != ROOT
        arc = node[is_deep] * len(self._continues_word) + label[is_deep]
        place = np.searchsorted(self._arcs, arc)
        is_there = self._arcs[np.minimum(place, len(self._arcs) - 1)] == arc
        child[is_deep] = np.where(is_there, place + 1, ROOT)
        return child
