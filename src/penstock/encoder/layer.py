"""One FastConformer layer on one chunk: half feed-forward, attention, convolution, half feed-forward, norm."""

import torch
import torch.nn.functional as F

from penstock.config import EncoderConfig
from penstock.encoder.attention import Attention, PageRows
from penstock.encoder.linear import Linear, Tensors, subset


class Norm:
    """Layer norm over the hidden axis."""

    def __init__(self, tensors: Tensors):
        self._weight, self._bias = tensors["weight"], tensors["bias"]
        self._shape = self._weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., D]"""
        return torch.layer_norm(x, self._shape, self._weight, self._bias)


class FeedForward:
    """residual + 1/2 down(silu(up(norm(x)))), with the half folded into `down`."""

    def __init__(self, tensors: Tensors):
        self._norm = Norm(subset(tensors, "norm"))
        self._up = Linear(subset(tensors, "up"))
        self._down = Linear(subset(tensors, "down"), scale=0.5)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """x: [B * T, D]"""
        return self._down.add_to(x, F.silu(self._up(self._norm(x)), inplace=True))


class Convolution:
    """residual + pointwise2(silu(norm(depthwise(glu(pointwise1(norm(x))))))), causal in time."""

    def __init__(self, tensors: Tensors):
        self._norm = Norm(subset(tensors, "norm"))
        self._pointwise1 = Linear(subset(tensors, "pointwise1"))
        self._depthwise_weight = tensors["depthwise.weight"]  # [D, k]
        self._depthwise_bias = tensors.get("depthwise.bias")
        depthwise_norm = subset(tensors, "depthwise_norm")
        self._depthwise_norm = Norm(depthwise_norm) if depthwise_norm else None
        self._pointwise2 = Linear(subset(tensors, "pointwise2"))

    def step(self, x: torch.Tensor, window: torch.Tensor, window_end: torch.Tensor) -> torch.Tensor:
        """x: [B * T, D]; window: [B, k - 1 + T, D], opening with the inputs before this chunk.

        window_end: its last T frames, which this chunk's inputs are written to.
        """
        batch, frames, d = window_end.shape
        value, gate = self._pointwise1(self._norm(x)).view(batch, frames, 2 * d).split(d, dim=2)
        torch.mul(value, gate.sigmoid_(), out=window_end)  # GLU, into its place
        mixed = depthwise(window, self._depthwise_weight, self._depthwise_bias).view(-1, d)
        if self._depthwise_norm is not None:
            mixed = self._depthwise_norm(mixed)
        return self._pointwise2.add_to(x, F.silu(mixed))


# Up to this many frames a product summed over taps beats the library's depthwise convolution on the CPU (docs/log.md).
_FEW_FRAMES = 24


def depthwise(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Depthwise convolution in time: padded [B, k - 1 + T, D], weight [D, k] -> [B, T, D]."""
    batch, length, d = padded.shape
    taps = weight.shape[1]
    frames = length - taps + 1
    if padded.is_cpu and (frames == 1 or batch * frames <= _FEW_FRAMES):
        out = (padded * weight.t()).sum(1) if frames == 1 else (padded.unfold(1, taps, 1) * weight).sum(-1)
        return out if bias is None else out.add_(bias)
    out = F.conv2d(padded.transpose(1, 2).unsqueeze(2), weight[:, None, None], bias, groups=d)
    return out.squeeze(2).transpose(1, 2).contiguous()


class ConformerLayer:
    """Weights of one layer and its step."""

    def __init__(self, config: EncoderConfig, positions: torch.Tensor, tensors: Tensors):
        self._feed_forward1 = FeedForward(subset(tensors, "feed_forward1"))
        self._attention_norm = Norm(subset(tensors, "attention.norm"))
        self._attention = Attention(config, positions, subset(tensors, "attention"))
        self._convolution = Convolution(subset(tensors, "convolution"))
        self._feed_forward2 = FeedForward(subset(tensors, "feed_forward2"))
        self._norm_out = Norm(subset(tensors, "norm_out"))

    def step(
        self,
        x: torch.Tensor,
        page_rows: torch.Tensor,
        rows: PageRows,
        conv_window: torch.Tensor,
        conv_window_end: torch.Tensor,
    ) -> torch.Tensor:
        """x: [B * T, D] -> the same; the layer's pages and the end of its convolution window are written in place."""
        x = self._feed_forward1.step(x)
        x = self._attention.step(self._attention_norm(x), x, page_rows, rows)
        x = self._convolution.step(x, conv_window, conv_window_end)
        return self._norm_out(self._feed_forward2.step(x))
