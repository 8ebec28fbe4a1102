"""Int8Linear: a product with a constant matrix of 8-bit numbers on a CPU. All that needs torch's operators for it.

Weights have a scale per output. Inputs have one per row, computed from the row alone: its result has the same bits
whatever the other rows hold and however many there are. With one scale for the batch, as `linear_dynamic` and ONNX's
DynamicQuantizeLinear have it, a quiet stream beside a loud one would be rounded away.
"""

import functools
import warnings

import torch

_EXTREME_INPUTS = 512
_TINY = torch.finfo(torch.float32).tiny
_QUANTIZED_TYPES = r".*quantiz"
"""Of warnings that torch's quantized types will be removed: `activation_bits` says when they are."""


class Int8Linear:
    """x @ weight.T + bias, as `Linear`."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
        bits: int | None = None,
    ):
        """weight: [out, in] float32, finite; bias: [out]. Stores a copy of `weight`, a byte for each number.

        factors: [in], positive: inputs are divided by them and the weight's columns multiplied, so that channels of
        very different magnitudes share a row's scale. bits: of the inputs, by default `activation_bits()`.
        """
        bits = bits or activation_bits()
        assert bits, "the operators are missing"
        self.bias, self.factors = bias, factors
        self._largest = (1 << (bits - 1)) - 1
        self._packed = _pack(weight if factors is None else weight * factors)
        self._inverse = None if factors is None else factors.reciprocal()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [..., in] to [..., out]. A row that is not finite gives one that is not finite."""
        out, scale = self._scaled(x)
        return out.mul_(scale) if self.bias is None else torch.addcmul(self.bias, out, scale)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Returns residual [..., out] + self(x)."""
        out, scale = self._scaled(x)
        out = torch.addcmul(residual, out, scale)
        return out if self.bias is None else out.add_(self.bias)

    def _scaled(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The product of rows whose largest magnitude is 1, and what it was, [..., 1]."""
        if self._inverse is not None:
            x = x * self._inverse
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min_(_TINY)  # zeros stay zeros
        return _multiply(x / scale, self._largest, self._packed), scale


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns numbers [out, in] int8 and the largest magnitude of each row [out], which is 127."""
    quantized, largest = _quantize(weight)
    return quantized.int_repr(), largest


def _quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = weight.abs().amax(dim=1).clamp_min_(_TINY)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_QUANTIZED_TYPES)
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        return torch.quantize_per_channel(weight, largest.double() / 127, zeros, 0, torch.qint8), largest


def _pack(weight: torch.Tensor) -> torch.ScriptObject:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_QUANTIZED_TYPES)
        return torch.ops.quantized.linear_prepack(_quantize(weight)[0], None)


def _multiply(x: torch.Tensor, largest: int, packed: torch.ScriptObject) -> torch.Tensor:
    """x: [..., in] in -1 .. 1; `largest` is what 1 becomes."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, 1 / largest, largest + 1, packed)


@functools.cache
def activation_bits() -> int:
    """8 where sums of 8-bit products are exact, else 7; 0 where this torch or this CPU has no such product.

    Without VNNI two products are added in 16 bits, which overflow with 8-bit inputs and give wrong numbers without a
    word. So the largest inputs and weights are tried: that tells more than the names of a CPU's instructions, which
    torch may not use.
    """
    extreme = torch.ones(2, _EXTREME_INPUTS)
    extreme[1] = -1
    try:
        for bits in (8, 7):
            found = Int8Linear(extreme, bits=bits)(extreme)
            if torch.allclose(found, extreme @ extreme.t(), rtol=1e-3, atol=0):
                return bits
    except (AttributeError, RuntimeError, NotImplementedError):  # removed, or no engine for this CPU
        pass
    return 0
