"""One FastConformer layer on one chunk: half feed-forward, attention, convolution, half feed-forward, norm."""

import torch
import torch.nn.functional as F

from penstock.config import EncoderConfig
from penstock.encoder.attention import Attention, PageRows

Tensors = dict[str, torch.Tensor]


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors under `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


class Norm:
    """Layer norm over the hidden axis."""

    def __init__(self, tensors: Tensors):
        self._weight, self._bias = tensors["weight"], tensors["bias"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., D]"""
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias)


class FeedForward:
    """residual + 1/2 down(silu(up(norm(x)))), with the half folded into `down`."""

    def __init__(self, tensors: Tensors):
        self._norm = Norm(subset(tensors, "norm"))
        self._up_weight = tensors["up.weight"]
        self._up_bias = tensors.get("up.bias")
        self._down_weight = tensors["down.weight"].t().contiguous() * 0.5
        self._down_bias = tensors["down.bias"] * 0.5 if "down.bias" in tensors else None

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """x: [B * T, D]"""
        hidden = F.silu(F.linear(self._norm(x), self._up_weight, self._up_bias), inplace=True)
        out = torch.addmm(x, hidden, self._down_weight)
        return out if self._down_bias is None else out.add_(self._down_bias)


class Convolution:
    """residual + pointwise2(silu(norm(depthwise(glu(pointwise1(norm(x))))))), causal in time."""

    def __init__(self, tensors: Tensors):
        self._norm = Norm(subset(tensors, "norm"))
        self._in_weight, self._in_bias = tensors["pointwise1.weight"], tensors.get("pointwise1.bias")
        self._depthwise_weight = tensors["depthwise.weight"]  # [D, k]
        self._depthwise_bias = tensors.get("depthwise.bias")
        depthwise_norm = subset(tensors, "depthwise_norm")
        self._depthwise_norm = Norm(depthwise_norm) if depthwise_norm else None
        self._out_weight, self._out_bias = tensors["pointwise2.weight"].t().contiguous(), tensors.get("pointwise2.bias")

    def step(self, x: torch.Tensor, tail: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [B, T, D]; tail: [B, k - 1, D], the inputs before this chunk. Returns the output and the next tail."""
        batch, frames, d = x.shape
        gated = F.glu(F.linear(self._norm(x), self._in_weight, self._in_bias))
        padded = torch.cat([tail, gated], dim=1)
        mixed = depthwise(padded, self._depthwise_weight, self._depthwise_bias)
        if self._depthwise_norm is not None:
            mixed = self._depthwise_norm(mixed)
        out = torch.addmm(x.flatten(0, 1), F.silu(mixed).view(batch * frames, d), self._out_weight)
        if self._out_bias is not None:
            out += self._out_bias
        return out.view(batch, frames, d), padded[:, frames:]


# Up to this many frames a product summed over taps beats the library's depthwise convolution on the CPU (docs/log.md).
_FEW_FRAMES = 24


def depthwise(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Depthwise convolution in time: padded [B, T + k - 1, D], weight [D, k] -> [B, T, D]."""
    batch, length, d = padded.shape
    taps = weight.shape[1]
    if padded.is_cpu and batch * (length - taps + 1) <= _FEW_FRAMES:
        out = (padded.unfold(1, taps, 1) * weight).sum(-1)
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
        self, x: torch.Tensor, pages: torch.Tensor, rows: PageRows, conv_tail: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [B, T, D] -> the same, and the next conv tail [B, k - 1, D]; `pages` is written in place."""
        shape = x.shape
        x = self._feed_forward1.step(x.flatten(0, 1)).view(shape)
        x = self._attention.step(self._attention_norm(x), x, pages, rows)
        x, conv_tail = self._convolution.step(x, conv_tail)
        x = self._feed_forward2.step(x.flatten(0, 1))
        return self._norm_out(x).view(shape), conv_tail
