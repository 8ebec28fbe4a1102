"""The closure equals all paths of epsilon arcs followed one by one; what a search cannot take is rejected."""

import random

import numpy as np
import pytest

from penstock.errors import GraphError
from penstock.scoring.wfst.building.closure import close
from penstock.scoring.wfst.building.fst_arrays import FstArrays, join_arcs
from tests.helpers.decoding_graphs import Arc, naive_closure


def transducer(arcs: list[Arc], states: int) -> FstArrays:
    sources, _, words, weights, targets = zip(*arcs, strict=True)
    return join_arcs(0, np.zeros(states), (sources, 0, words, weights, targets))


def random_epsilons(seed: int, states: int = 14) -> list[Arc]:
    """Arcs to higher states, many of them between the same two; words from below state 7 to above only."""
    chance = random.Random(seed)
    arcs = []
    for _ in range(40):
        source, target = sorted(chance.sample(range(states), 2))
        word = chance.choice((0, 1, 2)) if source < states // 2 <= target else 0
        arcs.append(Arc(source, None, word, chance.randint(-8, 32) / 8, target))
    return arcs


@pytest.mark.parametrize("seed", range(10))
def test_equal_to_following_every_path(seed):
    arcs, states = random_epsilons(seed), 14
    closure = close(transducer(arcs, states))
    for state in range(states):
        rows = slice(closure.offsets[state], closure.offsets[state + 1])
        found = zip(closure.targets[rows], closure.words[rows], closure.weights[rows], strict=True)
        assert list(found) == naive_closure(arcs, state)
    assert closure.weights.dtype == np.float32
    assert {array.dtype for array in (closure.offsets, closure.targets, closure.words)} == {np.dtype(np.int32)}


def test_states_without_epsilon_arcs_reach_themselves():
    closure = close(join_arcs(0, np.zeros(3), (np.zeros(0, int), 0, 0, 0.0, 0)))
    assert closure.offsets.tolist() == [0, 1, 2, 3]
    assert closure.targets.tolist() == [0, 1, 2]
    assert not closure.weights.any() and not closure.words.any()


@pytest.mark.parametrize(
    ("arcs", "message"),
    [
        ([Arc(0, None, 0, 0.0, 0)], "a cycle of epsilon arcs"),
        ([Arc(0, None, 0, 1.0, 1), Arc(1, None, 1, 1.0, 2), Arc(2, None, 0, 1.0, 1)], "a cycle of epsilon arcs"),
        ([Arc(0, None, 1, 0.0, 1), Arc(1, None, 0, 0.0, 2), Arc(2, None, 1, 0.0, 3)], "carries two words"),
    ],
)
def test_what_a_search_cannot_take_is_rejected(arcs, message):
    with pytest.raises(GraphError, match=message):
        close(transducer(arcs, 4))
