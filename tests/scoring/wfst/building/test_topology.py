"""The direct composition equals that with an explicit transducer T, and T is the rule of CTC."""

import itertools

import kaldifst
import numpy as np
import pytest

from penstock.errors import GraphError
from penstock.scoring.wfst.building import topology as topologies
from penstock.scoring.wfst.building.fst_arrays import FstArrays, from_fst, to_fst
from penstock.scoring.wfst.building.topology import compose_topology
from penstock.scoring.wfst.graph_file import Topology
from tests.helpers.graph_paths import only, openfst_best_path

V = 3
DISAMBIGUATION = range(V + 2, V + 4)
# Words over tokens 1 .. 3 with a back-off (5), an end of a word (6) and weights.
LG = (
    "0 1 1 1 0.5\n1 2 2 0 0.25\n1 3 6 0\n2 4 3 0 0.5\n3 0 5 0 1.0\n4 0 5 0 0.75\n0 3 3 2 1.5\n4 4 3 3 2.0\n"
    "1 1 1 2 3.0\n3 0.25\n4 0\n"
).replace(" ", "\t")


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


def composed(topology: str) -> tuple[FstArrays, FstArrays]:
    """Ours and that of OpenFst."""
    lg = kaldifst.compile(LG)
    kaldifst.arcsort(lg, "ilabel")
    t = kaldifst.compile(topology_text(topology, V, DISAMBIGUATION))
    kaldifst.arcsort(t, "olabel")
    theirs = from_fst(kaldifst.compose(t, lg))
    arrays = from_fst(lg)
    closed = arrays._replace(inputs=np.where(arrays.inputs > V, 0, arrays.inputs))
    return compose_topology(closed, topology, V), theirs


@pytest.mark.parametrize("topology", ["normal", "compact"])
def test_equal_to_an_explicit_transducer(topology):
    ours, theirs = composed(topology)
    assert str(ours) == str(theirs)
    our_fst, their_fst = to_fst(ours), to_fst(theirs)
    for labels in itertools.product(range(V + 1), repeat=4):
        assert openfst_best_path(our_fst, only(labels, V)) == openfst_best_path(their_fst, only(labels, V))


@pytest.mark.parametrize("topology", ["normal", "compact"])
def test_the_rule_of_ctc(topology):
    ours, _ = composed(topology)
    lg = from_fst(kaldifst.compile(LG))
    lg_fst, fst = to_fst(lg._replace(inputs=np.where(lg.inputs > V, 0, lg.inputs))), to_fst(ours)
    accepted = 0
    for labels in itertools.product(range(V + 1), repeat=4):
        texts = {collapse(labels, V)} if topology == "normal" else compact_collapses(labels, V)
        costs = [openfst_best_path(lg_fst, only(tokens, V)).cost if tokens else np.inf for tokens in texts]
        found = openfst_best_path(fst, only(labels, V)).cost
        assert found == min(costs)
        accepted += found < np.inf
    assert 10 < accepted < 4**4


def test_more_arcs_than_fit_are_rejected(monkeypatch):
    monkeypatch.setattr(topologies, "MAX_ARCS", 4)
    with pytest.raises(GraphError, match=r"with the normal CTC topology .* accepted: up to 4: .* --topology compact"):
        composed("normal")
    with pytest.raises(
        GraphError, match=r"with the compact CTC topology .* accepted: up to 4: fewer words or n-grams$"
    ):
        composed("compact")
