"""The parts of a FastConformer layer without attention: linear, norm, feed-forward and convolution."""

import torch
import torch.nn.functional as F

from penstock.linear import Linear

Tensors = dict[str, torch.Tensor]
NORM_EPSILON = 1e-5


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """Returns the tensors whose names start with `prefix.`, under the rest of their names."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


def linear(tensors: Tensors, dtype: torch.dtype, scale: float = 1.0) -> Linear:
    """The layer with `weight` [out, in] and maybe `bias` [out], both times `scale`, then cast."""
    bias = (tensors["bias"] * scale).to(dtype) if "bias" in tensors else None
    return Linear((tensors["weight"] * scale).to(dtype), bias)


class Norm:
    """Layer norm over the hidden axis."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._weight, self._bias = tensors["weight"].to(dtype), tensors["bias"].to(dtype)
        self._shape = self._weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes x [..., D]."""
        return torch.layer_norm(x, self._shape, self._weight, self._bias, NORM_EPSILON)


class FeedForward:
    """residual + 1/2 down(silu(up(norm(x)))), with the half folded into `down`."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._norm = Norm(subset(tensors, "norm"), dtype)
        self._up = linear(subset(tensors, "up"), dtype)
        self._down = linear(subset(tensors, "down"), dtype, scale=0.5)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape."""
        return self._down.add_to(x, F.silu(self._up(self._norm(x)), inplace=True))


class Convolution:
    """residual + pointwise2(silu(norm(depthwise(glu(pointwise1(norm(x))))))), causal in time or over a window."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype):
        self._norm = Norm(subset(tensors, "norm"), dtype)
        self._pointwise1 = linear(subset(tensors, "pointwise1"), dtype)
        self._depthwise_weight = tensors["depthwise.weight"].to(dtype)  # [D, k]
        self._taps = self._depthwise_weight.t().contiguous()  # [k, D], for the kernel
        self._depthwise_bias = tensors["depthwise.bias"].to(dtype) if "depthwise.bias" in tensors else None
        depthwise_norm = subset(tensors, "depthwise_norm")
        self._depthwise_norm = Norm(depthwise_norm, dtype) if depthwise_norm else None
        self._pointwise2 = linear(subset(tensors, "pointwise2"), dtype)

    def step(self, x: torch.Tensor, window: torch.Tensor, window_end: torch.Tensor) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape.

        window: [B, k - 1 + T, D], starts with the k - 1 inputs before this chunk. window_end: a view of its last T
        frames, where this chunk's inputs are written.
        """
        batch, frames, d = window_end.shape
        # 1) GLU, written after the inputs of earlier chunks
        value, gate = self.gates(x).view(batch, frames, 2 * d).split(d, dim=2)  # each [B, T, D]
        torch.mul(value, gate.sigmoid_(), out=window_end)
        # 2) causal depthwise convolution over the window, then the rest
        return self.finish(x, self.mix(window).view(-1, d))

    def step_fused(self, x: torch.Tensor, tails: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """As `step`, by a kernel. tails: this layer's of `EncoderState.conv_tails`."""
        from penstock.kernels.chunk_convolution import convolve_chunk  # here, because it imports Triton

        has_activation = self._depthwise_norm is None
        mixed = convolve_chunk(self.gates(x), tails, slots, self._taps, self._depthwise_bias, has_activation)
        return self._pointwise2.add_to(x, mixed) if has_activation else self.finish(x, mixed)

    def gates(self, x: torch.Tensor) -> torch.Tensor:
        """Returns values and gates [M, 2 * D] of x [M, D]; their GLU is the input of `mix`."""
        return self._pointwise1(self._norm(x))

    def mix(self, window: torch.Tensor) -> torch.Tensor:
        """The depthwise convolution: [B, k - 1 + T, D] -> [B, T, D], or [B, D] for one frame."""
        return depthwise(window, self._depthwise_weight, self._depthwise_bias)

    def finish(self, residual: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Returns residual [M, D] + what follows `mix`."""
        if self._depthwise_norm is not None:
            mixed = self._depthwise_norm(mixed)
        return self._pointwise2.add_to(residual, F.silu(mixed))


_FEW_FRAMES = 24
"""Up to this many frames a sum over taps is faster than the depthwise convolution of the library on the CPU; for one
frame per stream on a GPU, too."""


def depthwise(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolves each channel in time: padded [B, k - 1 + T, D], weight [D, k] -> [B, T, D]."""
    batch, length, d = padded.shape
    taps = weight.shape[1]
    frames = length - taps + 1
    if frames == 1 or (padded.is_cpu and batch * frames <= _FEW_FRAMES):
        out = (padded * weight.t()).sum(1) if frames == 1 else (padded.unfold(1, taps, 1) * weight).sum(-1)
        return out if bias is None else out.add_(bias)
    out = F.conv2d(padded.transpose(1, 2).unsqueeze(2), weight[:, None, None], bias, groups=d)  # [B, D, 1, T]
    return out.squeeze(2).transpose(1, 2).contiguous()
