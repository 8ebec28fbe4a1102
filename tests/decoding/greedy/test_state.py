"""The greedy state of streams in slots."""

import pytest
import torch

from penstock.decoding.greedy.state import GreedyStates, GreedyStateStore, fresh_states
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.scoring.fusion import FusionStates


def fill_states_(states: GreedyStates, values: list[int]) -> GreedyStates:
    """Gives every number of a row the row's value."""
    for leaf in leaves(states):
        for row, value in zip(leaf, values, strict=True):
            row.fill_(value)
    return states


def values_of(states: GreedyStates) -> set[tuple]:
    """For each tensor the first number of each row."""
    return {tuple(leaf.view(len(leaf), -1)[:, 0].tolist()) for leaf in leaves(states)}


def same(one: GreedyStates, other: GreedyStates) -> bool:
    """But for float32 sums of 40 products, whose absolute values add up to less than 40: 40 u 40 = 1e-4 (gamma_n)."""
    return all(torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(leaves(one), leaves(other), strict=True))


@pytest.fixture
def network(golden_bundle) -> TransducerNetwork:
    """Two LSTM layers."""
    return open_network(golden_bundle("rnnt_batch_norm"))


def test_a_new_state_is_fresh(network):
    state = GreedyStateStore(network, 4)
    assert same(state.gather(torch.tensor([0, 3])), fresh_states(network, 2))


def test_rows_come_back_from_their_slots(network):
    state = GreedyStateStore(network, 5)
    state.scatter(torch.tensor([3, 0]), fill_states_(fresh_states(network, 2), [7, 8]))
    assert values_of(state.gather(torch.tensor([0, 3]))) == {(8, 7)}
    assert same(state.gather(torch.tensor([1, 2, 4])), fresh_states(network, 3))


def test_a_reset_slot_is_fresh_and_others_stay(network):
    state = GreedyStateStore(network, 3)
    state.scatter(torch.arange(3), fill_states_(fresh_states(network, 3), [4, 5, 6]))
    state.reset(torch.tensor([2, 0]))
    assert same(state.gather(torch.tensor([0, 2])), fresh_states(network, 2))
    assert values_of(state.gather(torch.tensor([1]))) == {(5,)}


def test_what_a_stream_chose_is_set_with_the_reset(network):
    state = GreedyStateStore(network, 3)
    chosen = FusionStates(torch.tensor([4, 5]), torch.tensor([6, 7]), torch.tensor([0.5, 0.0]))
    state.reset(torch.tensor([2, 0]), chosen)
    fusion = state.gather(torch.tensor([0, 1, 2])).fusion
    assert [field.tolist() for field in fusion] == [[5, 0, 4], [7, 0, 6], [0.0, 0.0, 0.5]]
    state.reset(torch.tensor([2]))
    assert same(state.gather(torch.tensor([1, 2])), fresh_states(network, 2))


def test_gathered_rows_are_copies(network):
    state = GreedyStateStore(network, 2)
    fill_states_(state.gather(torch.tensor([0, 1])), [99, 99])
    assert same(state.gather(torch.tensor([0, 1])), fresh_states(network, 2))


def test_memory_of_a_stream_is_counted(network):
    state = GreedyStateStore(network, 3)
    total = sum(t.numel() * t.element_size() for t in leaves(state.gather(torch.arange(3))))
    assert state.bytes_per_slot == total // 3
