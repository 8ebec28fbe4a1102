"""PhraseTable: a phrase trie as flat arrays in which every arc is found in one step, without following failure arcs.

A few states have a *row*, with score and target for every label: the root, and whichever has too many arcs of its own.
Every other state names a row and says how it differs from it: an offset, and at most OWN_ARCS arcs. Host only.
"""

from typing import NamedTuple

import numpy as np

from penstock.fusion.phrase_list import refusal
from penstock.fusion.phrase_trie import ROOT, PhraseTrie

OWN_ARCS = 8
"""Arcs that a state can have beside its row. See docs/boosting.md for what fewer and more cost."""


class Arc(NamedTuple):
    """Where one label leads from a state."""

    score: float
    next_state: int


class _Sparse(NamedTuple):
    """A state's arcs: those of a row plus an offset, but for the labels in `own`."""

    row: int
    ends_word: float
    """Offset where the label does not carry on a word."""
    continues_word: float
    """Offset where it does."""
    own: dict[int, Arc]


class PhraseTable(NamedTuple):
    """N states and R rows; state 0 is the start. Numbers of states and rows are this table's own, from 0."""

    row: np.ndarray
    """[N] int32"""
    offsets: np.ndarray
    """[N, 2] float32, added to the row: for labels that end the word before them, for labels that carry it on."""
    final: np.ndarray
    """[N] float32, score of ending."""
    own_labels: np.ndarray
    """[N, OWN_ARCS] int32, labels that the row does not hold for; V where there are fewer."""
    own_scores: np.ndarray
    """[N, OWN_ARCS] float32, 0 at label V."""
    own_next: np.ndarray
    """[N, OWN_ARCS] int32, 0 at label V."""
    row_scores: np.ndarray
    """[R, V + 1] float32; the last column is 0."""
    row_next: np.ndarray
    """[R, V + 1] int32; the last column is 0."""


def build_table(trie: PhraseTrie, continues_word: np.ndarray, most_rows: int) -> PhraseTable:
    """continues_word: [V] bool, as the trie was made with. StreamError INVALID_ARGUMENT beyond `most_rows` rows."""
    arcs = _Resolver(trie, continues_word, most_rows)
    count, vocabulary_size = len(trie), len(continues_word)
    own = [list(state.own.items()) for state in arcs.states]
    own_labels = np.full((count, OWN_ARCS), vocabulary_size, np.int32)
    own_scores = np.zeros((count, OWN_ARCS), np.float32)
    own_next = np.zeros((count, OWN_ARCS), np.int32)
    state = np.repeat(np.arange(count), [len(items) for items in own])
    place = np.array([i for items in own for i in range(len(items))], np.int64)
    own_labels[state, place] = [label for items in own for label, _ in items]
    own_scores[state, place] = [arc.score for items in own for _, arc in items]
    own_next[state, place] = [arc.next_state for items in own for _, arc in items]
    row_scores, row_next = arcs.rows()
    return PhraseTable(
        row=np.array([s.row for s in arcs.states], np.int32),
        offsets=np.array([(s.ends_word, s.continues_word) for s in arcs.states], np.float32),
        final=np.array(trie.final, np.float32),
        own_labels=own_labels,
        own_scores=own_scores,
        own_next=own_next,
        row_scores=row_scores,
        row_next=row_next,
    )


class _Resolver:
    """Replaces failure arcs by what they lead to, in order of depth."""

    def __init__(self, trie: PhraseTrie, continues_word: np.ndarray, most_rows: int):
        # Node by node, lists are quicker than arrays.
        self._fail, self._earned = trie.fail.node.tolist(), trie.fail.earned.tolist()
        self._booked, self._bonus = trie.booked.tolist(), trie.bonus.tolist()
        self._is_phrase = (~np.isnan(trie.bonus)).tolist()
        self._children: list[dict[int, int]] = [{} for _ in range(len(trie))]
        for child, (parent, label) in enumerate(zip(trie.parent.tolist(), trie.label.tolist(), strict=True)):
            if child != ROOT:
                self._children[parent][label] = child
        self._continues_word = continues_word
        self._is_continued = continues_word.tolist()  # quicker than the array, label by label
        self.states: list[_Sparse] = []
        self._row_sources: list[_Sparse] = []  # each row in terms of an earlier one
        for node in range(len(trie)):
            sparse = self._arcs(node)
            if node == ROOT or len(sparse.own) > OWN_ARCS:
                if len(self._row_sources) == most_rows:
                    raise refusal(
                        f"too many phrases that go on from the same beginning in more than {OWN_ARCS} ways; accepted: "
                        f"up to {most_rows} such beginnings, which is what the memory for all lists holds"
                    )
                self._row_sources.append(sparse)
                sparse = _Sparse(len(self._row_sources) - 1, 0.0, 0.0, {})
            self.states.append(sparse)

    def _arcs(self, node: int) -> _Sparse:
        booked = self._booked[node]
        children = {label: Arc(self._booked[child] - booked, child) for label, child in self._children[node].items()}
        if node == ROOT:
            return _Sparse(0, 0.0, 0.0, children)
        fail = self._fail[node]
        paid_back = self._earned[node] + self._booked[fail] - booked
        if not self._is_phrase[node]:
            below = self.states[fail]
            own = {label: Arc(paid_back + arc.score, arc.next_state) for label, arc in below.own.items()}
            return _Sparse(below.row, paid_back + below.ends_word, paid_back + below.continues_word, own | children)
        # A phrase ends here: a label that ends its word starts afresh, any other fails as it would elsewhere.
        below = self._over_root_row(self.states[fail])
        own = {
            label: Arc(paid_back + arc.score, arc.next_state)
            for label, arc in below.own.items()
            if self._is_continued[label]
        }
        return _Sparse(ROOT, self._bonus[node] - booked, paid_back + below.continues_word, own | children)

    def _over_root_row(self, sparse: _Sparse) -> _Sparse:
        """The same arcs in terms of the root's row."""
        while sparse.row != ROOT:
            source = self._row_sources[sparse.row]
            own = {
                label: Arc(arc.score + self._offset(sparse, label), arc.next_state) for label, arc in source.own.items()
            }
            sparse = _Sparse(
                source.row,
                sparse.ends_word + source.ends_word,
                sparse.continues_word + source.continues_word,
                own | sparse.own,
            )
        return sparse

    def _offset(self, sparse: _Sparse, label: int) -> float:
        return sparse.continues_word if self._is_continued[label] else sparse.ends_word

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """`row_scores` and `row_next` of the table."""
        vocabulary_size = len(self._continues_word)
        scores = np.zeros((len(self._row_sources), vocabulary_size + 1), np.float64)
        next_states = np.zeros(scores.shape, np.int32)
        for row, source in enumerate(self._row_sources):
            if row != ROOT:
                offsets = np.where(self._continues_word, source.continues_word, source.ends_word)
                scores[row, :-1] = scores[source.row, :-1] + offsets
                next_states[row] = next_states[source.row]
            labels = list(source.own)
            scores[row, labels] = [source.own[label].score for label in labels]
            next_states[row, labels] = [source.own[label].next_state for label in labels]
        return scores.astype(np.float32), next_states
