"""The N best word sequences of a segment, and its lattice as OpenFst's text; on the host."""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.decoding.wfst.device_graph import NO_PIECE
from penstock.decoding.wfst.lattice import Level
from penstock.decoding.wfst.lattice_text import openfst_text
from penstock.scoring.wfst.graph_file import NO_WORD


class Node(NamedTuple):
    """A piece or word of a path: fields as in `penstock.decoding.wfst.state.Nodes`."""

    piece: int
    word: int
    frame: int
    last_frame_before: int
    score: float


class PathEnd(NamedTuple):
    """One path of a whole segment."""

    nodes: list[Node]
    last_frame: int
    """Last frame of its last piece; -1 without one."""
    cost: float
    """Of the whole path, as `BestPath.costs`."""
    acoustic_cost: float
    """Of its labels alone."""


class _Step(NamedTuple):
    """Part of a path: from a token of the lattice to the end."""

    depth: int
    """Levels before it."""
    token: int
    """Its place."""
    words: int
    """Number of the words that follow."""
    link: int
    """The link behind the token; -1 at the end."""
    rest: "_Step | None"


class SegmentLattice:
    """All paths within the lattice beam of the best one, unless a frame had more losers than are kept."""

    def __init__(self, levels: list[Level], ends: np.ndarray, beam: float, best_cost: float, words: Sequence[str]):
        """levels, ends: of `Lattice.end`; best_cost: of the best path; words: texts by number."""
        self._levels, self._beam, self._best_cost = levels, beam, best_cost
        order = np.argsort(ends, kind="stable").tolist()
        self._ends = [(float(ends[token]), token) for token in order if ends[token] < np.inf]
        used = {word for level in levels for field in (level.words, level.closure_words) for word in field.tolist()}
        self._texts: Mapping[int, str] = {word: words[word] for word in used}

    def best(self, count: int) -> list[PathEnd]:
        """At most `count` paths with different words, best first, the first as the search has found it.

        A* from the end: what a path adds to the best one's cost is known before it is complete, because each token has
        its best path from the start. Of paths with the same words behind a token only the cheapest goes on.
        """
        columns = [_Columns(level) for level in self._levels]
        numbers: dict[tuple[int, int], int] = {}
        # 1) the best path takes the first link of each token
        step = _Step(len(columns), self._ends[0][1], 0, -1, None)
        while step.depth:
            column = columns[step.depth - 1]
            step = column.before(step, column.firsts[step.token], numbers)
        found = {step.words: self._path(step, 0.0)}
        # 2) the others, in order of cost
        steps = [_Step(len(columns), token, 0, -1, None) for _, token in self._ends]
        queue = [(cost, number) for number, (cost, _) in enumerate(self._ends)]
        seen: set[tuple[int, ...]] = set()
        while queue and len(found) < count:
            cost, number = heapq.heappop(queue)
            if cost > self._beam:  # of links that are within it one by one
                break
            step = steps[number]
            key = step.depth, step.token, step.words
            if key in seen:
                continue
            seen.add(key)
            if not step.depth:
                found.setdefault(step.words, self._path(step, cost))
                continue
            column = columns[step.depth - 1]
            for link in range(column.firsts[step.token], column.firsts[step.token + 1]):
                heapq.heappush(queue, (cost + column.excesses[link], len(steps)))
                steps.append(column.before(step, link, numbers))
        return list(found.values())

    def _path(self, step: _Step, cost: float) -> PathEnd:
        """The path of a step that begins at the start; cost: above the best path's."""
        nodes, last_frame, acoustic_cost = [], -1, 0.0
        for level in self._levels:
            link = step.link
            piece, word, closure_word = int(level.pieces[link]), int(level.words[link]), int(level.closure_words[link])
            label_cost = float(level.label_costs[link])
            if piece != NO_PIECE or word != NO_WORD:
                score = -label_cost if piece != NO_PIECE else 0.0
                nodes.append(Node(piece, word, level.frame, last_frame, score))
            if level.is_label[link]:
                last_frame = level.frame
            if closure_word != NO_WORD:
                nodes.append(Node(NO_PIECE, closure_word, level.frame, last_frame, 0.0))
            acoustic_cost += label_cost
            assert step.rest is not None
            step = step.rest
        return PathEnd(nodes, last_frame, self._best_cost + cost, acoustic_cost)

    def openfst_text(self) -> str:
        """An acceptor in OpenFst's text: words, or <eps>, on its arcs; costs add up to those of paths.

        Several paths may have the same words, and some may be beyond the beam.
        """
        return openfst_text(
            self._levels, [(self._best_cost + above, token) for above, token in self._ends], self._texts
        )


class _Columns:
    """A level as lists, for single links."""

    def __init__(self, level: Level):
        self._sources, self.excesses = level.sources.tolist(), level.excesses.tolist()
        self._words, self._closure_words = level.words.tolist(), level.closure_words.tolist()
        tokens = np.arange(level.targets.max(initial=-1) + 2)
        self.firsts: list[int] = np.searchsorted(level.targets, tokens).tolist()
        """Where the links of each token begin."""

    def before(self, step: _Step, link: int, numbers: dict[tuple[int, int], int]) -> _Step:
        """The step with a link to its token in front; numbers: of all sequences of words so far."""
        words = step.words
        for word in (self._closure_words[link], self._words[link]):
            if word != NO_WORD:
                words = numbers.setdefault((words, word), len(numbers) + 1)
        return _Step(step.depth - 1, self._sources[link], words, link, step)
