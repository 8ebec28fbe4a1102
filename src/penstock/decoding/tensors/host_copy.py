"""Copies between device and host: a tree of tensors as one block, through pinned memory, with one synchronization."""

from collections.abc import Sequence
from typing import Any

import torch

from penstock.decoding.tensors.tensor_tree import Tree, leaves, map_tensors
from penstock.runtime import send_to_device

_BITS_OF = {torch.float64: torch.int64, torch.float32: torch.int32, torch.int32: torch.int32}


def copy_to_host(block: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to the CPU; synchronizes once. A tensor on the CPU is returned as it is."""
    if block.device.type == "cpu":
        return block
    host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
    host.copy_(block, non_blocking=True)
    torch.cuda.current_stream(block.device).synchronize()
    return host


def tree_to_host(tree: Tree) -> Tree:
    """Copies a tree of tensors (int64, int32, float64, float32) to the CPU bit by bit, in one copy."""
    sizes = [tensor.numel() for tensor in leaves(tree)]
    block = torch.cat([_to_integers(tensor).flatten() for tensor in leaves(tree)])
    parts = iter(copy_to_host(block).split(sizes))
    return map_tensors(lambda tensor: _from_integers(next(parts), tensor.dtype).view(tensor.shape), tree)


def copy_to_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values as a tensor [n] on the device; does not synchronize."""
    return send_to_device(torch.tensor(values, dtype=dtype), device)


def _to_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as int64, of the same shape."""
    return tensor if tensor.dtype == torch.int64 else tensor.view(_BITS_OF[tensor.dtype]).long()


def _from_integers(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Undoes `_to_integers`."""
    return part if dtype == torch.int64 else part.to(_BITS_OF[dtype]).view(dtype)
