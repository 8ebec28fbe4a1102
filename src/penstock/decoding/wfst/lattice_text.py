"""A lattice as OpenFst's text: an acceptor of words."""

import math
from collections.abc import Mapping, Sequence

from penstock.decoding.wfst.lattice import Level
from penstock.scoring.wfst.graph_file import NO_WORD

EPSILON = "<eps>"

_State = tuple[int, ...]
"""Levels before a token, its place, and both words of a link where the state is between them. Levels are -1 between
the words before the first level."""
_Arcs = dict[tuple[_State, int], float]
"""Arcs to or from a state: the other state and the word, with the least cost."""
_START: _State = (-1, 0)


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
