"""A back-off model as a deterministic automaton in flat arrays: what `NgramLm` holds on its device.

State 0 is the empty context. Every n-gram below the highest order is a state, and an arc into it; the highest order
are arcs only, into the state of their longest suffix. A state without an arc for a label backs off to the state of its
longest suffix. Nothing is assumed about pruning: a context that the file lacks becomes a state without a back-off
weight (as in SRILM), and a suffix that it lacks is skipped (as in KenLM and SRILM).
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import LanguageModelError
from penstock.scoring.ngram.arpa import LOG10_ZERO, MAX_ORDER, UNKNOWN, Arpa, check_sentence_marks
from penstock.scoring.ngram.context_tree import ROOT, ContextTree

_LN10 = float(np.log(10.0))


class NgramTables(NamedTuple):
    """S states, A arcs, V labels. Scores are natural logarithms, float32; everything else is int64."""

    arc_keys: np.ndarray
    """[A] sorted: `state * V + label`; no arcs leave state 0 here."""
    arc_scores: np.ndarray
    """[A]."""
    arc_states: np.ndarray
    """[A] target states."""
    root_scores: np.ndarray
    """[V], from state 0, which has an arc for every label."""
    root_states: np.ndarray
    """[V]."""
    backoff_scores: np.ndarray
    """[S]; 0 for state 0."""
    backoff_states: np.ndarray
    """[S]; state 0 backs off to itself."""
    final_scores: np.ndarray
    """[S] of the end of the sentence, back-off included."""
    start_state: np.ndarray
    """[1] the state after `<s>`."""
    order: np.ndarray
    """[1] the longest n-gram's length."""


def build_tables(arpa: Arpa, labels: np.ndarray, vocabulary_size: int) -> NgramTables:
    """`labels` [W] int64 are those of `arpa.words`, -1 for the special ones.

    A label that the file lacks scores as `<unk>`, or `LOG10_ZERO` if there is none. Raises ArpaError for an n-gram
    that occurs twice (with its line) and for a missing sentence mark.
    """
    check_sentence_marks(arpa)
    tree = ContextTree(arpa)
    words = _WordLabels(arpa.words, labels, vocabulary_size)
    # 1) the tree's arcs are by words; an arc by `<unk>` is one by every label that the file lacks
    states, labels_of_arcs, rows = words.expand(tree.arc_sources, tree.arc_words)
    scores = (tree.arc_log10_scores[rows] * _LN10).astype(np.float32)
    targets = tree.arc_targets[rows]
    # 2) state 0 has a table over all labels, the others sorted keys
    is_root = states == ROOT
    root_scores = np.full(vocabulary_size, LOG10_ZERO * _LN10, np.float32)
    root_states = np.full(vocabulary_size, ROOT, np.int64)
    root_scores[labels_of_arcs[is_root]] = scores[is_root]
    root_states[labels_of_arcs[is_root]] = targets[is_root]
    keys = states * vocabulary_size + labels_of_arcs
    order = np.flatnonzero(~is_root)
    order = order[np.argsort(keys[order], kind="stable")]
    return NgramTables(
        arc_keys=keys[order],
        arc_scores=scores[order],
        arc_states=targets[order],
        root_scores=root_scores,
        root_states=root_states,
        backoff_scores=(tree.log10_backoffs * _LN10).astype(np.float32),
        backoff_states=tree.suffixes,
        final_scores=(tree.final_log10_scores() * _LN10).astype(np.float32),
        start_state=np.array([tree.start], np.int64),
        order=np.array([arpa.order], np.int64),
    )


class _WordLabels:
    """The labels of each word: its own, or for `<unk>` all labels without a word."""

    def __init__(self, words: list[str], labels: np.ndarray, vocabulary_size: int):
        unseen = np.setdiff1d(np.arange(vocabulary_size), labels)
        is_unknown = np.array([word == UNKNOWN for word in words], dtype=bool)
        self._counts = np.where(labels >= 0, 1, 0)
        self._counts[is_unknown] = len(unseen)
        offsets = np.cumsum(self._counts) - self._counts
        self._offsets = offsets
        self._labels = np.empty(self._counts.sum(), np.int64)
        self._labels[offsets[labels >= 0]] = labels[labels >= 0]
        for word in np.flatnonzero(is_unknown):
            self._labels[offsets[word] : offsets[word] + len(unseen)] = unseen

    def expand(self, states: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source states and labels of arcs, and which of the given arcs each comes from."""
        counts = self._counts[words]
        rows = np.repeat(np.arange(len(words)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return states[rows], self._labels[self._offsets[words[rows]] + within], rows


def check_tables(tables: NgramTables) -> None:
    """Raises LanguageModelError where numbers in the tables of a stored file are out of range."""
    if any(array.ndim != 1 for array in tables):
        raise LanguageModelError("its tables do not have one dimension each")
    states, size = len(tables.backoff_scores), len(tables.root_scores)
    lengths = [
        (tables.arc_keys, tables.arc_scores, tables.arc_states),
        (tables.root_scores, tables.root_states),
        (tables.backoff_scores, tables.backoff_states, tables.final_scores),
    ]
    is_sound = (
        states > 0
        and size > 0
        and all(len({len(array) for array in arrays}) == 1 for arrays in lengths)
        and len(tables.start_state) == len(tables.order) == 1
        and 1 <= tables.order[0] <= MAX_ORDER
        and all(np.isfinite(array).all() for array in tables)
        and all(
            ((array >= 0) & (array < states)).all()
            for array in (tables.arc_states, tables.root_states, tables.backoff_states, tables.start_state)
        )
        and (np.diff(tables.arc_keys) > 0).all()
        and (tables.arc_keys >= size).all()
        and (tables.arc_keys < states * size).all()
        and _reaches_root(tables.backoff_states, int(tables.order[0]))
    )
    if not is_sound:
        raise LanguageModelError("the tables do not fit together")


def _reaches_root(backoff_states: np.ndarray, order: int) -> bool:
    state = np.arange(len(backoff_states))
    for _ in range(order - 1):
        state = backoff_states[state]
    return bool((state == ROOT).all() and backoff_states[ROOT] == ROOT)
