"""The contexts of a back-off model as a tree over its words, with the longest suffix of each context.

Built level by level with sorted arrays: no dictionary of n-grams, no loop over them.
"""

import numpy as np

from penstock.scoring.ngram.arpa import BEGIN, END, Arpa, ArpaError, ArpaSection

ROOT = 0
_NONE = -1


class _Nodes:
    """Nodes in the order of creation; node 0 is the root. A sorted array of `parent * W + word` finds children."""

    def __init__(self, word_count: int):
        self.word_count = word_count
        self.parents = np.array([_NONE], np.int64)
        self.words = np.array([_NONE], np.int64)
        self._keys = np.empty(0, np.int64)
        self._nodes = np.empty(0, np.int64)

    def find(self, parents: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The children [N], -1 where there is none."""
        if not len(self._keys):
            return np.full(len(parents), _NONE)
        keys = parents * self.word_count + words
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._nodes[places], _NONE)

    def find_or_add(self, parents: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The children [N]; missing ones are added."""
        missing = self.find(parents, words) == _NONE
        keys = np.unique(parents[missing] * self.word_count + words[missing])
        if len(keys):
            new = np.arange(len(self.parents), len(self.parents) + len(keys))
            self.parents = np.concatenate([self.parents, keys // self.word_count])
            self.words = np.concatenate([self.words, keys % self.word_count])
            places = np.searchsorted(self._keys, keys)
            self._keys, self._nodes = np.insert(self._keys, places, keys), np.insert(self._nodes, places, new)
        return self.find(parents, words)


class ContextTree:
    """Contexts as nodes 0 .. S-1, and n-grams as arcs.

    `start` is the node of `<s>`; `suffixes` [S] int64 the longest proper suffix that is a node; `log10_backoffs` [S]
    float64; `arc_sources`, `arc_words`, `arc_targets` [A] int64 and `arc_log10_scores` [A] float64 the arcs.
    """

    def __init__(self, arpa: Arpa):
        """ArpaError names an n-gram that occurs twice."""
        self._arpa = arpa
        self._begin, self._end = arpa.words.index(BEGIN), arpa.words.index(END)
        self._nodes = _Nodes(len(arpa.words))
        self._ends: list[tuple[np.ndarray, np.ndarray]] = []  # nodes, log10 scores of </s> after them
        self._scores: list[tuple[np.ndarray, np.ndarray]] = []  # nodes, log10 scores of the arcs into them
        backoffs: list[tuple[np.ndarray, np.ndarray]] = []
        highest_sources = highest_words = np.empty(0, np.int64)
        highest_scores = np.empty(0)
        for order, section in enumerate(arpa.sections, start=1):
            section = self._without_unreachable(section)
            sources = self._walk(section.words[:, :-1])
            words = section.words[:, -1].astype(np.int64)
            self._reject_duplicates(order, section, sources, words)
            scores = section.log10_probabilities.astype(np.float64)
            is_end = words == self._end
            self._ends.append((sources[is_end], scores[is_end]))
            sources, words, scores = sources[~is_end], words[~is_end], scores[~is_end]
            if order == arpa.order:
                highest_sources, highest_words, highest_scores = sources, words, scores
            else:
                nodes = self._nodes.find_or_add(sources, words)
                self._scores.append((nodes, scores))
                backoffs.append((nodes, section.log10_backoffs[~is_end].astype(np.float64)))
        self.log10_backoffs = self._per_node(backoffs, 0.0)
        self._depths = self._find_depths()
        self.suffixes = np.zeros(len(self._nodes.parents), np.int64)
        for nodes in self._by_depth(2):
            parents = self._nodes.parents[nodes]
            self.suffixes[nodes] = self._longest_child(self.suffixes[parents], self._nodes.words[nodes])
        self.start = ROOT if arpa.order == 1 else int(self._nodes.find(np.array([ROOT]), np.array([self._begin]))[0])
        into = np.arange(1, len(self._nodes.parents))
        self.arc_sources = np.concatenate([self._nodes.parents[into], highest_sources])
        self.arc_words = np.concatenate([self._nodes.words[into], highest_words])
        self.arc_log10_scores = np.concatenate([self._node_scores()[into], highest_scores])
        highest_targets = self._longest_child(self.suffixes[highest_sources], highest_words)
        self.arc_targets = np.concatenate([into, highest_targets])

    def final_log10_scores(self) -> np.ndarray:
        """Scores [S] float64 of the end of the sentence, back-off included."""
        scores = self.ending_log10_scores()
        for nodes in self._by_depth(1):
            nodes = nodes[np.isnan(scores[nodes])]
            scores[nodes] = self.log10_backoffs[nodes] + scores[self.suffixes[nodes]]
        return scores

    def ending_log10_scores(self) -> np.ndarray:
        """Scores [S] float64 of the end of the sentence where the file has the n-gram, else nan."""
        return self._per_node(self._ends, np.nan)

    def _without_unreachable(self, section: ArpaSection) -> ArpaSection:
        """Drops n-grams across sentence boundaries, which IRSTLM counts: no search reaches them."""
        crosses = (section.words[:, :-1] == self._end).any(axis=1) | (section.words[:, 1:] == self._begin).any(axis=1)
        return ArpaSection(*(column[~crosses] for column in section))

    def _walk(self, words: np.ndarray) -> np.ndarray:
        """The nodes [N] of contexts [N, n]; those that the file lacks are added."""
        nodes = np.full(len(words), ROOT, np.int64)
        for column in words.T.astype(np.int64):
            nodes = self._nodes.find_or_add(nodes, column)
        return nodes

    def _reject_duplicates(self, order: int, section: ArpaSection, sources: np.ndarray, words: np.ndarray) -> None:
        keys = sources * self._nodes.word_count + words
        by_key = np.argsort(keys, kind="stable")
        again = by_key[1:][keys[by_key[1:]] == keys[by_key[:-1]]]
        if len(again):
            row = again[np.argmin(section.lines[again])]
            ngram = " ".join(self._arpa.words[word] for word in section.words[row])
            raise ArpaError(f"line {section.lines[row]}: the {order}-gram {ngram!r} occurs twice")

    def _per_node(self, values: list[tuple[np.ndarray, np.ndarray]], default: float) -> np.ndarray:
        result = np.full(len(self._nodes.parents), default)
        for nodes, value in values:
            result[nodes] = value
        return result

    def _find_depths(self) -> np.ndarray:
        depths = np.zeros(len(self._nodes.parents), np.int64)
        nodes = self._nodes.parents.copy()  # parents of parents, until the root's parent is reached everywhere
        while (alive := nodes != _NONE).any():
            depths += alive
            nodes = np.where(alive, self._nodes.parents[nodes], _NONE)
        return depths

    def _by_depth(self, first: int) -> list[np.ndarray]:
        return [np.flatnonzero(self._depths == depth) for depth in range(first, self._arpa.order)]

    def _longest_child(self, nodes: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The child by `words` of each node or, if it has none, of its longest suffix that has one; else the root."""
        result = self._nodes.find(nodes, words)
        for _ in range(self._arpa.order):
            nodes = self.suffixes[nodes]
            result = np.where(result == _NONE, self._nodes.find(nodes, words), result)
        return np.where(result == _NONE, ROOT, result)

    def _node_scores(self) -> np.ndarray:
        """log10 scores [S] of the arcs into each node; by back-off where the file lacks the node."""
        scores = self._per_node(self._scores, np.nan)
        for nodes in self._by_depth(2):
            nodes = nodes[np.isnan(scores[nodes])]
            contexts, words = self._nodes.parents[nodes], self._nodes.words[nodes]
            total = np.zeros(len(nodes))
            for _ in range(self._arpa.order):
                known = scores[self._nodes.find(contexts, words)]
                is_open = np.isnan(scores[nodes])
                is_found = is_open & ~np.isnan(known) & (self._nodes.find(contexts, words) != _NONE)
                scores[nodes[is_found]] = total[is_found] + known[is_found]
                total += self.log10_backoffs[contexts]
                contexts = self.suffixes[contexts]
        return scores
