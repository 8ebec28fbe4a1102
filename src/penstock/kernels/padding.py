"""Weights padded with zeros to whole blocks, once at construction. Knows no kernel.

The kernels' inner loops then need no masks for them, and rows stay aligned whatever the vocabulary's size is.
"""

import torch


def whole_blocks(size: int, block: int) -> int:
    """The least multiple of `block` that holds `size`."""
    return -(-size // block) * block


def pad_matrix(matrix: torch.Tensor, row_block: int, column_block: int) -> torch.Tensor:
    """[R, C] -> the same with zeros behind, contiguous."""
    rows, columns = matrix.shape
    right, below = whole_blocks(columns, column_block) - columns, whole_blocks(rows, row_block) - rows
    return torch.nn.functional.pad(matrix, (0, right, 0, below)).contiguous()


def pad_vector(vector: torch.Tensor, block: int, value: float = 0.0) -> torch.Tensor:
    """[C] -> float32 with `value` behind."""
    return torch.nn.functional.pad(vector.float(), (0, whole_blocks(len(vector), block) - len(vector)), value=value)


def product_type(weight: torch.Tensor) -> torch.Tensor:
    """The weight as the product takes it: the interpreter, which alone runs on a CPU, cannot multiply bfloat16."""
    return weight.float() if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 else weight
