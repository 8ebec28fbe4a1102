"""Shared by the kernels: the import of Triton, activations, block products, and weights padded to whole blocks.

Without Triton the kernels are plain functions that are never called, so their modules can be imported anywhere.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from penstock.kernels.triton_package import why_no_triton

if why_no_triton() is None:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
else:
    triton = SimpleNamespace(jit=lambda function=None, **_: function or (lambda function: function))
    tl = SimpleNamespace(constexpr=None)


@triton.jit
def sigmoid(x):
    """Logistic function of float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """tanh by the logistic function, because the language has none. Off by at most 1e-7, like the sums around it."""
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def activate(x, activation: tl.constexpr):
    """relu, tanh or sigmoid of float32, chosen when the kernel is compiled."""
    if activation == "relu":
        result = tl.maximum(x, 0.0)
    elif activation == "tanh":
        result = tanh(x)
    else:
        result = sigmoid(x)
    return result


@triton.jit
def max_per_row(x):
    """Maximum of each row of x [M, N] and its column, the first of equals; NaN never wins, a row of NaN gives -inf."""
    # Triton leaves the arg-max of a row of NaN undefined: a device returns any column, the interpreter of 3.9 raises.
    return tl.max(tl.where(x == x, x, float("-inf")), 1, return_indices=True)


@triton.jit
def add_product(total, left_rows, row_mask, weight, columns, pitch, width: tl.constexpr, block: tl.constexpr):
    """total + left @ weight in float32.

    left_rows: pointers [M] to rows of `width`; weight: [width, pitch], of which `columns` [N] are read. The weight is
    padded with zeros to whole blocks in both directions, so only the left side needs a mask.
    """
    for start in range(0, width, block):
        inner = start + tl.arange(0, block)
        mask = row_mask[:, None] & (inner < width)[None, :]
        left = tl.load(left_rows[:, None] + inner[None, :], mask=mask, other=0.0)
        right = tl.load(weight + inner[:, None] * pitch + columns[None, :])
        # ieee: the default would cut float32 to TF32. Has no effect on the 16-bit types.
        total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")
    return total


def whole_blocks(size: int, block: int) -> int:
    """Returns `size` rounded up to a multiple of `block`."""
    return -(-size // block) * block


def pad_matrix(matrix: torch.Tensor, row_block: int, column_block: int) -> torch.Tensor:
    """Pads [R, C] with zeros to whole blocks, once at construction: inner loops need no masks and rows stay aligned."""
    rows, columns = matrix.shape
    right, below = whole_blocks(columns, column_block) - columns, whole_blocks(rows, row_block) - rows
    return torch.nn.functional.pad(matrix, (0, right, 0, below)).contiguous()


def pad_vector(vector: torch.Tensor, block: int, value: float = 0.0) -> torch.Tensor:
    """Converts [C] to float32 and pads it with `value` to whole blocks."""
    return torch.nn.functional.pad(vector.float(), (0, whole_blocks(len(vector), block) - len(vector)), value=value)


def product_type(weight: torch.Tensor) -> torch.Tensor:
    """Converts bfloat16 weights on a CPU to float32, because the interpreter cannot multiply bfloat16."""
    return weight.float() if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 else weight
