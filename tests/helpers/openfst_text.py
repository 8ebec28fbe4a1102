"""Acceptors of words in OpenFst's text."""

import math
from collections import defaultdict
from collections.abc import Sequence


def word_sequences_of_text(text: str, names: Sequence[str]) -> dict[tuple[int, ...], float]:
    """The least cost of each word sequence of an acceptor, by its state costs; words as numbers among `names`.

    From the start, the costs of all sequences to each state; states must be in topological order in the arcs' sources.
    """
    arcs: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    finals: dict[str, float] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 2:
            finals[fields[0]] = float(fields[1])
        else:
            source, target, word, cost = fields
            arcs[source].append((target, word, float(cost)))
    reached: dict[str, dict[tuple[int, ...], float]] = {text.split("\t", 1)[0]: {(): 0.0}}
    found: dict[tuple[int, ...], float] = {}
    for state in [*arcs, *(state for state in finals if state not in arcs)]:
        for words, cost in reached.pop(state).items():
            for target, word, more in arcs.get(state, ()):
                extended = words if word == "<eps>" else (*words, names.index(word))
                costs = reached.setdefault(target, {})
                costs[extended] = min(cost + more, costs.get(extended, math.inf))
            if state in finals:
                found[words] = min(cost + finals[state], found.get(words, math.inf))
    return found
