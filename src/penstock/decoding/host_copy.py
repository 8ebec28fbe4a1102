"""The way from the device to the host: any number of tensors as one block, copied once through pinned memory; and back.

Knows no search.
"""

from collections.abc import Sequence

import torch

from penstock.decoding.rows import leaves, map_rows

_BITS_OF = {torch.float64: torch.int64, torch.float32: torch.int32}


def copy_to_host(block: torch.Tensor) -> torch.Tensor:
    """The same on the CPU; waits for the device once. On a CPU the block itself."""
    if block.device.type == "cpu":
        return block
    host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
    host.copy_(block, non_blocking=True)
    torch.cuda.current_stream(block.device).synchronize()
    return host


def tree_to_host(tree):
    """A tree of tensors (int64, float64, float32), bit by bit the same, on the CPU: one copy, whatever is in it."""
    sizes = [tensor.numel() for tensor in leaves(tree)]
    block = torch.cat([_to_integers(tensor).flatten() for tensor in leaves(tree)])
    pieces = iter(copy_to_host(block).split(sizes))
    return map_rows(lambda tensor: _from_integers(next(pieces), tensor.dtype).view(tensor.shape), tree)


def copy_to_device(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The numbers [n] on the device; nobody waits for it."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _to_integers(tensor: torch.Tensor) -> torch.Tensor:
    """int64 of the same shape."""
    return tensor if tensor.dtype == torch.int64 else tensor.view(_BITS_OF[tensor.dtype]).long()


def _from_integers(piece: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Undoes `_to_integers`."""
    return piece if dtype == torch.int64 else piece.to(_BITS_OF[dtype]).view(dtype)
