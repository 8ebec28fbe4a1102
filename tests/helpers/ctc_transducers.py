"""The CTC topologies as explicit transducers (Laptev et al. 2022, figures 1 and 3), which Penstock never makes."""

import itertools

from penstock.scoring.wfst.graph_file import Topology


def topology_text(topology: Topology, vocabulary_size: int, disambiguation: range) -> str:
    """OpenFst's text of T: inputs token + 1, blank V + 1, epsilon; outputs token + 1 and `disambiguation`, in loops."""
    blank, tokens = vocabulary_size + 1, range(1, vocabulary_size + 1)
    arcs = [(0, 0, blank, 0)]
    for token in tokens:
        arcs += [(0, token, token, token), (token, token, token, 0)]
        if topology == "compact":
            arcs.append((token, 0, 0, 0))
        else:
            arcs.append((token, 0, blank, 0))
            arcs += [(token, other, other, other) for other in tokens if other != token]
    ends = [0] if topology == "compact" else [0, *tokens]
    arcs += [(state, state, 0, symbol) for state in ends for symbol in disambiguation]
    lines = ["\t".join(map(str, arc)) for arc in arcs]
    return "\n".join([*lines, *map(str, ends)]) + "\n"


def collapse(labels: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """The tokens of a sequence of CTC labels: repeats are one, blanks none."""
    return tuple(label for label, _ in itertools.groupby(labels) if label != blank)


def compact_collapses(labels: tuple[int, ...], blank: int) -> set[tuple[int, ...]]:
    """All that the compact topology makes of them: a repeat is held on or a new token."""
    runs = [(label, len(list(run))) for label, run in itertools.groupby(labels) if label != blank]
    counts = itertools.product(*(range(1, length + 1) for _, length in runs))
    return {tuple(label for (label, _), n in zip(runs, each, strict=True) for _ in range(n)) for each in counts}
