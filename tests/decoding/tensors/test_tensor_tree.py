"""Trees of tensors go to the host as one block and come out bit by bit the same."""

from typing import NamedTuple

import pytest
import torch

from penstock.decoding.tensors import tensor_tree
from penstock.decoding.tensors.tensor_tree import copy_to_device, copy_to_host, leaves, tree_to_host


class Pair(NamedTuple):
    whole: torch.Tensor
    real: torch.Tensor


@pytest.fixture
def copies(monkeypatch) -> list[int]:
    """Sizes of the blocks that were copied."""
    sizes: list[int] = []
    real = tensor_tree.copy_to_host

    def count(block: torch.Tensor) -> torch.Tensor:
        assert block.dtype == torch.int64 and block.is_contiguous()
        sizes.append(block.numel())
        return real(block)

    monkeypatch.setattr(tensor_tree, "copy_to_host", count)
    return sizes


def tree(device: str) -> tuple:
    odd = torch.tensor([0.1, -0.0, -torch.inf, torch.nan, 1e-45, 3e38])
    whole = torch.tensor([[-1, 2**62], [-(2**63), 7]])
    parts = (whole, odd), (whole.t(), odd.double().view(2, 3).t()), (torch.zeros(0, 3).long(), torch.zeros(2, 0))
    pairs = [Pair(*(t.to(device) for t in part)) for part in parts]
    return pairs[0], (pairs[1], pairs[2]), torch.tensor(5, device=device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_copy_for_everything(copies, device):
    host = tree_to_host(tree(device))
    assert isinstance(host[0], Pair) and isinstance(host[1][1], Pair)
    expected = leaves(tree("cpu"))
    for found, one in zip(leaves(host), expected, strict=True):
        assert (found.device.type, found.dtype, found.shape) == ("cpu", one.dtype, one.shape)
        assert found.numpy().tobytes() == one.contiguous().numpy().tobytes()
    assert copies == [sum(map(torch.numel, expected))]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_numbers_on_the_device(device):
    for values, dtype in (([3, -1], torch.int64), ([True, False], torch.bool), ([], torch.int64)):
        found = copy_to_device(values, dtype, torch.device(device))
        assert (found.device.type, found.dtype, found.tolist()) == (device, dtype, values)


def test_on_a_cpu_a_block_is_itself():
    block = torch.arange(3)
    assert copy_to_host(block) is block
