"""BatchedHyps: masked additions, growth, and the way to the host."""

import pytest
import torch

from penstock.decoding.greedy.batched_hyps import BatchedHyps
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


def test_labels_are_added_where_the_mask_holds():
    hyps = filled()
    assert rows(hyps) == [[10, 20], [], [12]]
    assert labels_of(hyps, 0)[1] == (20, 200, 2, -5.0)


def test_a_full_row_that_adds_nothing_keeps_its_labels():
    hyps = filled()
    add(hyps, [False, True, True], 30)
    assert rows(hyps) == [[10, 20], [31], [12, 32]]


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
