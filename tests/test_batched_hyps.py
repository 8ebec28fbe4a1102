"""BatchedHyps: masked additions, growth, and the way to the host."""

import pytest
import torch

from penstock.decoding.batched_hyps import BatchedHyps
from tests.decoding import labels_of


def add(hyps: BatchedHyps, mask: list[bool], value: int) -> None:
    """Adds labels `value`, `value + 1` and so on where `mask` holds."""
    labels = torch.arange(len(mask), device=hyps.labels.device) + value
    hyps.add(torch.tensor(mask, device=labels.device), labels, labels * 10, labels % 3, -labels / 4)


def rows(hyps: BatchedHyps) -> list[list[int]]:
    return [[label.id for label in labels_of(hyps, row)] for row in range(len(hyps.lengths))]


def filled(device="cpu") -> BatchedHyps:
    hyps = BatchedHyps(3, 2, device)
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
    before = [labels_of(hyps, row) for row in range(3)]
    hyps.grow()
    assert hyps.max_labels == 4
    assert [labels_of(hyps, row) for row in range(3)] == before
    add(hyps, [True, False, False], 40)
    assert rows(hyps)[0] == [10, 20, 40]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_to_host(device):
    host = filled(device).to_host()
    assert all(t.device.type == "cpu" for t in (host.lengths, host.labels, host.scores))
    assert [labels_of(host, row) for row in range(3)] == [labels_of(filled(), row) for row in range(3)]
    assert host.scores.dtype == torch.float32
