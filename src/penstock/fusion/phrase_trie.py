"""PhraseTrie: token phrases as a prefix tree with failure arcs (Aho and Corasick 1975), and what each node is worth.

The rule is *leftmost longest at word ends* (docs/boosting.md): reading from the left, the first phrase that is complete
where a word ends earns its bonus, the longest where several begin at one token, and reading goes on behind it. A phrase
is one run of labels; its bonus is its boost times its tokens. Knows no tensors.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.fusion.phrase_tokens import TokenPhrase

ROOT = 0


class Settled(NamedTuple):
    """Where reading stands once the front of what was read can match no more."""

    node: int
    earned: float
    """Bonuses of the phrases that were complete in what has been dropped."""


class PhraseTrie:
    """Nodes 0 .. N-1 in order of depth, ROOT first. A node stands for the labels on the way from the root to it.

    `booked[node]` is what a path has been given so far for these labels: the bonus of the phrase they are, or what the
    best longer phrase lends for the part that is there, whichever is more. An arc's score is the difference that it
    makes to what is booked and earned, so a path's scores always add up to bonuses earned plus what is booked.
    """

    def __init__(self, phrases: Sequence[TokenPhrase], continues_word: Sequence[bool]):
        """phrases: distinct token sequences; continues_word: for each label, True where no word ends before it."""
        self._continues_word = continues_word
        self.children: list[dict[int, int]] = []
        self._bonus: list[float | None] = []
        self._lent: list[float] = []
        self._fail: list[Settled] = []
        self.booked: list[float] = []
        self.final: list[float] = []
        self._grow(phrases)
        self._settle()

    def __len__(self) -> int:
        return len(self.children)

    def fail(self, node: int) -> Settled:
        """Where a label leads reading that `node` has no arc for, if it carries on a word or `node` is no phrase."""
        return self._fail[node]

    def bonus(self, node: int) -> float | None:
        """The bonus of the phrase that `node` is; None where it is none."""
        return self._bonus[node]

    def _grow(self, phrases: Sequence[TokenPhrase]) -> None:
        """Makes the nodes level by level: a node's phrases are a run of the sorted phrases."""
        runs: list[list[TokenPhrase]] = [list(phrases)]
        depth_of = [0]
        node = 0
        while node < len(runs):
            depth = depth_of[node]
            branches: dict[int, list[TokenPhrase]] = {}
            bonus, lent_per_token = None, -math.inf
            for phrase in runs[node]:
                if len(phrase.tokens) == depth:
                    bonus = depth * phrase.boost
                    continue
                branches.setdefault(phrase.tokens[depth], []).append(phrase)
                if phrase.boost > 0:  # a penalty is not lent: it would hit every word that begins alike
                    lent_per_token = max(lent_per_token, phrase.boost)
            self._bonus.append(bonus)
            self._lent.append(depth * lent_per_token if depth else 0.0)
            self.children.append({})
            for token, run in branches.items():
                self.children[node][token] = len(runs)
                runs.append(run)
                depth_of.append(depth + 1)
            node += 1

    def _settle(self) -> None:
        """Failure arcs and values in order of depth: a failure arc leads to a node less deep."""
        self._fail = [Settled(ROOT, 0.0)] * len(self)
        self.booked = [0.0] * len(self)
        self.final = [0.0] * len(self)
        ended = [0.0] * len(self)  # what the labels of a node are worth if nothing follows
        for parent, children in enumerate(self.children):
            for label, node in children.items():
                fail = self._go(self._drop(parent, label), label) if parent != ROOT else Settled(ROOT, 0.0)
                bonus = self._bonus[node]
                self._fail[node] = fail
                as_it_stands = fail.earned + self.booked[fail.node] if bonus is None else bonus
                self.booked[node] = max(as_it_stands, self._lent[node])
                ended[node] = fail.earned + ended[fail.node] if bonus is None else bonus
                self.final[node] = ended[node] - self.booked[node]

    def _drop(self, node: int, label: int) -> Settled:
        """Gives up that `node` grows by `label`: what is complete in front is earned, or the first label is dropped."""
        bonus = self._bonus[node]
        if bonus is not None and not self._continues_word[label]:
            return Settled(ROOT, bonus)
        return self._fail[node]

    def _go(self, start: Settled, label: int) -> Settled:
        """Where `label` leads from `start`, through as many failure arcs as it takes."""
        node, earned = start
        while label not in self.children[node]:
            if node == ROOT:
                return Settled(ROOT, earned)
            node, more = self._drop(node, label)
            earned += more
        return Settled(self.children[node][label], earned)
