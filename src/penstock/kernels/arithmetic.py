"""Functions that kernels share: activations, and a product of which one side is made on the way."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Of float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """By the logistic function: the language itself has no tanh. Off by 1e-7 at most, like the sums around it."""
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
def add_product(total, left_rows, row_mask, weight, columns, pitch, width: tl.constexpr, block: tl.constexpr):
    """total + left @ weight, float32.

    left_rows: pointers [M] to rows of `width`; weight: [width, pitch], of which `columns` [N] are taken. The weight is
    padded with zeros to whole blocks both ways, so only the left side needs a mask.
    """
    for start in range(0, width, block):
        inner = start + tl.arange(0, block)
        mask = row_mask[:, None] & (inner < width)[None, :]
        left = tl.load(left_rows[:, None] + inner[None, :], mask=mask, other=0.0)
        right = tl.load(weight + inner[:, None] * pitch + columns[None, :])
        # ieee: float32 must stay float32, the default would drop 13 bits of it. Says nothing to the 16-bit types.
        total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")
    return total
