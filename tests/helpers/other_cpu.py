"""A CPU that sums in another order: `pytest -p tests.helpers.other_cpu` changes last bits by place and shape.

What torch computes with sums (products of matrices, convolutions, norms, softmax, FFT) is off by -1, 0 or 1 unit in the
last place afterwards, the same in every call with the same shapes. A test that demands equal bits of different shapes
fails under it on any machine. Sums of one number remain exact, as on every CPU.
"""

import functools
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

PERIOD, FACTOR = 65521, 40503
"""A prime number, and a step that leaves no order in multiples of it."""
SUMS = {
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "matmul", "einsum", "mkldnn_rnn_layer", "lstm"),
    "mkldnn::_linear_pointwise",
    *("convolution", "conv1d", "conv2d", "layer_norm", "native_layer_norm", "_fft_r2c", "fft_rfft", "stft"),
    *("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "scaled_dot_product_attention", "mean", "sum"),
}


class OtherCpu(TorchDispatchMode):
    """Disturbs the results of SUMS."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name = summed(func)
        if not name:
            return found
        if name == "logsumexp":
            greatest = args[0].amax(*args[1:]).nan_to_num(neginf=0.0)
            return greatest + disturbed(found - greatest)
        if name == "sum":
            terms = func((args[0] != 0).to(found.dtype), *args[1:], **(kwargs or {}))
            return torch.where(terms > 1, disturbed(found), found)
        return tree_map_only(torch.Tensor, disturbed, found)


@functools.cache
def summed(function: torch._ops.OpOverload) -> str:
    """The name of an operation of SUMS, or nothing."""
    name = function._schema.name.removeprefix("aten::")
    return name if name in SUMS else ""


def disturbed(values: torch.Tensor) -> torch.Tensor:
    """`values` with other last bits."""
    if values.is_complex():
        return torch.view_as_complex(disturbed(torch.view_as_real(values)))
    # In 16 bit sums are made in float32 and rounded once: another order changes few of them.
    if not values.is_floating_point() or values.element_size() < 4:
        return values
    return values * factors(values.shape, values.dtype)


def factors(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """1, and its neighbours by one unit in the last place; a view, which must not be written to."""
    seed, count = hash(tuple(shape)) % 2**31, shape.numel()  # of integers, so the same in every process
    begin = seed * pow(FACTOR, -1, PERIOD) % PERIOD
    return repeated(1 << (-(-count // PERIOD)).bit_length(), dtype)[begin : begin + count].view(shape)


@functools.cache
def repeated(periods: int, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        units = (torch.arange(PERIOD) * FACTOR % PERIOD % 3 - 1).to(dtype)
        return (1 + units * torch.finfo(dtype).eps).repeat(periods)


@pytest.fixture(autouse=True)
def other_cpu() -> Iterator[None]:
    with OtherCpu():
        yield
