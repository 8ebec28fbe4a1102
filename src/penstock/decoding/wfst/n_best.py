"""The N best word sequences of a segment, and its lattice as OpenFst's text, an acceptor of words; on the host."""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.decoding.wfst.lattice import Level, Node, PathStart
from penstock.scoring.wfst.graph_file import NO_WORD

EPSILON = "<eps>"

_State = tuple[int, ...]
"""Levels before a token, its place, and both words of a link where the state is between them. Levels are -1 between
the words before the first level."""
_Arcs = dict[tuple[_State, int], float]
"""Arcs to or from a state: the other state and the word, with the least cost."""
_START: _State = (-1, 0)


class PathEnd(NamedTuple):
    """One path of a whole segment."""

    nodes: list[Node]
    last_frame: int
    """Last frame of its last piece; -1 without one."""
    cost: float
    """Cost of the whole path, as `BestPath.costs`."""
    acoustic_cost: float
    """Cost of its labels alone."""


class _PathPart(NamedTuple):
    """Part of a path: from a token of the lattice to the end."""

    depth: int
    """Levels before it."""
    token: int
    """The token's index in its level."""
    words: int
    """Number of the words that follow."""
    link: int
    """The link after the token; -1 at the end."""
    rest: "_PathPart | None"


class SegmentLattice:
    """All paths within the lattice beam of the best one that differ in the last frames, unless a frame had more losers
    than are kept."""

    def __init__(
        self,
        starts: list[PathStart],
        levels: list[Level],
        ends: np.ndarray,
        beam: float,
        best_cost: float,
        words: Sequence[str],
    ):
        """starts, levels, ends: of `Lattice.end`; best_cost: of the best path; words: texts by number."""
        self._levels, self._beam, self._best_cost = levels, beam, best_cost
        self._nodes_before = [start.nodes() for start in starts]
        self._starts = [PathStart(None, None, start.last_frame, start.acoustic_cost) for start in starts]
        order = np.argsort(ends, kind="stable").tolist()
        self._ends = [(float(ends[token]), token) for token in order if ends[token] < np.inf]
        used = {word for level in levels for field in (level.words, level.closure_words) for word in field.tolist()}
        self._words_before = [tuple(n.word for n in nodes if n.word != NO_WORD) for nodes in self._nodes_before]
        self._texts: Mapping[int, str] = {word: words[word] for word in used.union(*self._words_before)}

    def best(self, count: int) -> list[PathEnd]:
        """At most `count` paths with different words, best first, the first as the search has found it.

        A* from the end: what a path adds to the best one's cost is known before it is complete, because each token has
        its best path from the start. Of paths with the same words after a token only the cheapest goes on.
        """
        columns = [_Columns(level) for level in self._levels]
        numbers: dict[tuple[int, int], int] = {}
        starts = {words: number for number, words in enumerate(self._words_before)}
        found: dict[tuple[int, ...], PathEnd] = {}
        steps = [_PathPart(len(columns), token, 0, -1, None) for _, token in self._ends]
        queue = [(cost, number) for number, (cost, _) in enumerate(self._ends)]
        seen: set[tuple[int, ...]] = set()
        while queue and len(found) < count:
            cost, number = heapq.heappop(queue)
            step = steps[number]
            # 1) along the best path to the step, as far as it is new with these words; other links wait their turn
            while (key := (step.depth, step.token, step.words)) not in seen and step.depth:
                seen.add(key)
                column = columns[step.depth - 1]
                first = column.firsts[step.token]
                for link in range(first + 1, column.firsts[step.token + 1]):
                    if (total := cost + column.excesses[link]) <= self._beam:
                        heapq.heappush(queue, (total, len(steps)))
                        steps.append(column.before(step, link, numbers))
                step = column.before(step, first, numbers)
            if step.depth:
                continue
            # 2) at the start: the path, unless a cheaper one has its words
            key = -1, starts[self._words_before[step.token]], step.words
            if key not in seen:
                seen.add(key)
                path = self._path(step, cost)
                found.setdefault(tuple(node.word for node in path.nodes if node.word != NO_WORD), path)
        return list(found.values())

    def _path(self, step: _PathPart, cost: float) -> PathEnd:
        """The path of a step that begins at the start; cost: above the best path's."""
        nodes, path = self._nodes_before[step.token], self._starts[step.token]
        for level in self._levels:
            path = path.after(level, step.link)
            assert step.rest is not None
            step = step.rest
        return PathEnd(nodes + path.nodes(), path.last_frame, self._best_cost + cost, path.acoustic_cost)

    def openfst_text(self) -> str:
        """An acceptor in OpenFst's text: words, or <eps>, on its arcs; costs add up to those of paths.

        Several paths may have the same words, and some may be beyond the beam.
        """
        ends = [(self._best_cost + above, token) for above, token in self._ends]
        return openfst_text(self._words_before, self._levels, ends, self._texts)


class _Columns:
    """A level as lists, for single links."""

    def __init__(self, level: Level):
        self._sources, self.excesses = level.sources.tolist(), level.excesses.tolist()
        self._words, self._closure_words = level.words.tolist(), level.closure_words.tolist()
        tokens = np.arange(level.targets.max(initial=-1) + 2)
        self.firsts: list[int] = np.searchsorted(level.targets, tokens).tolist()
        """Starts of the links of each token."""

    def before(self, step: _PathPart, link: int, numbers: dict[tuple[int, int], int]) -> _PathPart:
        """The step with a link to its token in front; numbers: of all sequences of words so far."""
        words = step.words
        for word in (self._closure_words[link], self._words[link]):
            if word != NO_WORD:
                words = numbers.setdefault((words, word), len(numbers) + 1)
        return _PathPart(step.depth - 1, self._sources[link], words, link, step)


def openfst_text(
    words_before: Sequence[tuple[int, ...]],
    levels: Sequence[Level],
    ends: Sequence[tuple[float, int]],
    words: Mapping[int, str],
) -> str:
    """Words, or <eps>, on arcs, whose costs add up to those of paths; words_before: of the tokens before the first
    level; ends: costs of the best paths to the last tokens.

    Several paths may have the same words. States that only <eps> leads to, from one state, or on to one, are left out.
    """
    leaving, moved = _forwards(words_before, levels)
    finals: dict[_State, float] = {}
    for cost, token in ends:
        state, more = _moved(moved, (len(levels), token))
        finals[state] = min(finals.get(state, math.inf), cost + more)
    leaving = _backwards(leaving, finals)
    numbers: dict[_State, int] = {_START: 0}
    lines = [
        f"{numbers.setdefault(source, len(numbers))}\t{numbers.setdefault(target, len(numbers))}"
        f"\t{words[word] if word else EPSILON}\t{cost:.6g}\n"
        for source, arcs in leaving.items()
        for (target, word), cost in arcs.items()
    ]
    lines += [f"{numbers.setdefault(state, len(numbers))}\t{cost:.6g}\n" for state, cost in finals.items()]
    return "".join(lines)


def _forwards(
    words_before: Sequence[tuple[int, ...]], levels: Sequence[Level]
) -> tuple[dict[_State, _Arcs], dict[_State, tuple[_State, float]]]:
    """Arcs from each state, in topological order, and what stands for the states that are left out.

    Left out are tokens to which only one state leads, without a word.
    """
    moved: dict[_State, tuple[_State, float]] = {}
    leaving: dict[_State, _Arcs] = {_START: {}}
    # 1) a tree of the words before the first level
    children: dict[tuple[_State, int], _State] = {}
    for token, words in enumerate(words_before):
        state = _START
        for word in words:
            child = children.setdefault((state, word), (-1, len(children) + 1))
            leaving.setdefault(child, {})
            leaving[state][child, word] = 0.0
            state = child
        moved[0, token] = state, 0.0
    # 2) the levels
    for depth, level in enumerate(levels, start=1):
        fields = level.sources, level.targets, level.words, level.closure_words, level.excesses
        arriving: dict[_State, _Arcs] = {}
        for source, target, word, closure_word, excess in zip(*(field.tolist() for field in fields), strict=True):
            state, cost = _moved(moved, (depth - 1, source))
            cost += excess
            if word and closure_word:
                between = depth, target, word, closure_word
                leaving.setdefault(between, {})
                _add(leaving[state], (between, word), cost)
                state, word, cost = between, NO_WORD, 0.0
            _add(arriving.setdefault((depth, target), {}), (state, word or closure_word), cost)
        for target, arcs in arriving.items():
            if len(arcs) == 1 and not next(iter(arcs))[1]:
                (((source, _), cost),) = arcs.items()
                moved[target] = source, cost
                continue
            for (source, word), cost in arcs.items():
                _add(leaving[source], (target, word), cost)
            leaving[target] = {}
    return leaving, moved


def _backwards(leaving: Mapping[_State, _Arcs], finals: Mapping[_State, float]) -> dict[_State, _Arcs]:
    """The arcs without states that only lead on to one state, without a word."""
    moved: dict[_State, tuple[_State, float]] = {}
    left: dict[_State, _Arcs] = {}
    for state in reversed(list(leaving)):
        arcs: _Arcs = {}
        for (target, word), cost in leaving[state].items():
            target, more = _moved(moved, target)
            _add(arcs, (target, word), cost + more)
        ways = list(arcs.items())
        if len(ways) == 1 and not ways[0][0][1] and state != _START and state not in finals:
            ((target, _), cost) = ways[0]
            moved[state] = target, cost
        else:
            left[state] = arcs
    return dict(reversed(left.items()))


def _moved(moved: Mapping[_State, tuple[_State, float]], state: _State) -> tuple[_State, float]:
    return moved.get(state, (state, 0.0))


def _add(arcs: _Arcs, arc: tuple[_State, int], cost: float) -> None:
    arcs[arc] = min(arcs.get(arc, math.inf), cost)
