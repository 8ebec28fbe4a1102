"""The labels of greedy hypotheses, and their state in slots."""

import pytest
import torch

from penstock.decoding.greedy.memory import BatchedHyps, GreedyStates, GreedyStateStore, fresh_states
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.scoring.fusion import FusionStates
from tests.helpers.decoding import labels_of


def add(hyps: BatchedHyps, mask: list[bool], value: int) -> None:
    """Adds labels `value`, `value + 1` and so on where `mask` holds."""
    labels = torch.arange(len(mask), device=hyps.labels.device) + value
    hyps.add(torch.tensor(mask, device=labels.device), labels, labels * 10, labels % 3, -labels / 4)


def rows(hyps: BatchedHyps) -> list[list[int]]:
    return [[label.id for label in labels_of(hyps, row)] for row in range(len(hyps.lengths))]


def filled(device="cpu") -> BatchedHyps:
    hyps = BatchedHyps(3, 2, device, is_growable=True)
    add(hyps, [True, False, True], 10)
    add(hyps, [True, False, False], 20)
    return hyps


def test_growing_keeps_everything():
    hyps = filled()
    for value in (40, 50, 60, 70):
        add(hyps, [True, False, False], value)
    assert rows(hyps) == [[10, 20, 40, 50, 60, 70], [], [12]]
    assert labels_of(hyps, 0)[-1] == (70, 700, 1, -17.5)


def test_storage_of_a_fixed_size_stays_where_it_is():
    storage = torch.full((BatchedHyps.storage_size(2, 3) + 5,), 77)
    hyps = BatchedHyps(2, 3, storage=storage)
    for _ in range(2):
        hyps.clear()
        for value in (10, 20, 30):
            add(hyps, [True, False], value)
        assert rows(hyps) == [[10, 20, 30], []]
    assert hyps.labels.untyped_storage().data_ptr() == storage.data_ptr()
    assert storage[-5:].tolist() == [77] * 5


def test_labels_are_appended_to_labels():
    hyps, more = BatchedHyps(3, 5), filled()
    for expected in ([[10, 20], [], [12]], [[10, 20, 10, 20], [], [12, 12]]):
        hyps.extend(more)
        assert rows(hyps) == expected
    assert labels_of(hyps, 2) == [(12, 120, 0, -3.0)] * 2


@pytest.mark.parametrize("expected_labels", [None, 0, 1, 2, 9])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_to_host(device, expected_labels):
    hyps = filled(device)
    hyps._expected_labels = expected_labels
    host = hyps.to_host()
    assert all(t.device.type == "cpu" for t in (host.lengths, host.labels, host.scores))
    assert [labels_of(host, row) for row in range(3)] == [labels_of(filled(), row) for row in range(3)]


def same(one: GreedyStates, other: GreedyStates) -> bool:
    """But for float32 sums of 40 products, whose absolute values add up to less than 40: 40 u 40 = 1e-4 (gamma_n)."""
    return all(torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(leaves(one), leaves(other), strict=True))


@pytest.fixture
def network(golden_bundle) -> TransducerNetwork:
    """Two LSTM layers."""
    return open_network(golden_bundle("rnnt_batch_norm"))


def test_what_a_stream_chose_is_set_with_the_reset(network):
    state = GreedyStateStore(network, 3)
    chosen = FusionStates(torch.tensor([4, 5]), torch.tensor([6, 7]), torch.tensor([0.5, 0.0]))
    state.reset(torch.tensor([2, 0]), chosen)
    fusion = state.gather(torch.tensor([0, 1, 2])).fusion
    assert [field.tolist() for field in fusion] == [[5, 0, 4], [7, 0, 6], [0.0, 0.0, 0.5]]
    state.reset(torch.tensor([2]))
    assert same(state.gather(torch.tensor([1, 2])), fresh_states(network, 2))
