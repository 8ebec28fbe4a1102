"""Shared by the kernels: the import of Triton, activations, block products, minima of rows, and padded weights.

Without Triton the kernels are plain functions that are never called, so their modules can be imported anywhere. The
least cost of a row is an integer while many programs work on it, so that any order of threads agrees.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from penstock.extras import why_no_triton

NO_COST = 0x7F800000
"""Infinity as `ordered` has it: a row without entries."""
_TRIAL_VALUES = 8


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


@triton.jit
def ordered(cost):
    """float32 as int32 in the same order; its own inverse on the bits."""
    bits = cost.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def lower_least(least, cost, mask):
    """least: pointer to int32, of a row; cost: [N] float32."""
    tl.atomic_min(least, tl.min(ordered(tl.where(mask, cost, float("inf"))), 0))


@triton.jit
def finite_least(least):
    """The row's least cost, float32; 0 if it has no entry of a finite cost."""
    bits = tl.load(least)
    cost = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(cost < float("inf"), cost, 0.0)


@triton.jit
def _double_kernel(values, count: tl.constexpr):
    """values: pointer to float32 [count], doubled in place."""
    at = values + tl.arange(0, count)
    tl.store(at, 2.0 * tl.load(at))


def try_out(device: torch.device) -> str | None:
    """Compiles and runs the kernel and waits for it; returns what failed, or None.

    The first kernel of a process also compiles Triton's launcher, which takes a C compiler.
    """
    values = torch.arange(_TRIAL_VALUES, dtype=torch.float32, device=device)
    try:
        _double_kernel[(1,)](values, count=_TRIAL_VALUES)
        found = values.tolist()
    except Exception as error:  # noqa: BLE001 - of the compiler, the launcher or the device
        return f"a trial failed: {type(error).__name__}: {error}"
    expected = [2.0 * value for value in range(_TRIAL_VALUES)]
    return None if found == expected else f"a trial returned {found}, expected {expected}"
