"""The FastConformer encoder over a whole utterance, written plainly: what the encoders must reproduce.

Takes nothing but a checkpoint's tensors. Attention sees its context through one mask, and no state crosses anything.
"""

import torch
import torch.nn.functional as F

from penstock.model.config import AttentionContext, EncoderConfig

Tensors = dict[str, torch.Tensor]


class EncoderReference:
    """One utterance at a time, offline."""

    def __init__(self, config: EncoderConfig, tensors: Tensors):
        self._config = config
        self._tensors = tensors

    def encode(
        self,
        mel: torch.Tensor,
        context: AttentionContext | None = None,
        band: tuple[int, int] | None = None,
        chunks: tuple[int, int, int] | None = None,
    ) -> torch.Tensor:
        """mel [N, F] of the whole utterance -> [T, D]; context: of a cache-aware model; band, chunks (left, size and
        right): of an offline one."""
        if len(mel) == 0:
            return torch.zeros(0, self._config.d_model)
        x = self._subsample(mel)
        may_see = _band_mask(len(x), *(band or (len(x), len(x)))) if context is None else _mask(len(x), context)
        if chunks is not None:
            may_see = _chunk_mask(len(x), *chunks)
        for layer in range(self._config.n_layers):
            x = self._layer(f"encoder.layers.{layer}.", x, may_see)
        return x

    def _subsample(self, mel: torch.Tensor) -> torch.Tensor:
        tensors, x = self._tensors, mel[None, None]  # [1, C, N, F]
        x = self._strided(x, "encoder.subsampling.first", groups=1).relu()
        for i in range(self._config.subsampling_layers - 1):
            x = self._strided(x, f"encoder.subsampling.depthwise.{i}", groups=x.shape[1])
            pointwise = f"encoder.subsampling.pointwise.{i}"
            x = F.conv2d(x, tensors[pointwise + ".weight"][:, :, None, None], tensors[pointwise + ".bias"]).relu()
        x = self._linear(x[0].permute(1, 0, 2).flatten(1), "encoder.subsampling.out")  # [T, C * F'] -> [T, D]
        return x * self._config.d_model**0.5 if self._config.xscaling else x

    def _strided(self, x: torch.Tensor, name: str, groups: int) -> torch.Tensor:
        weight, bias = self._tensors[name + ".weight"], self._tensors[name + ".bias"]
        before = 1 if self._config.is_offline else 2
        return F.conv2d(F.pad(x, (before, 1, before, 1)), weight, bias, stride=2, groups=groups)

    def _layer(self, name: str, x: torch.Tensor, may_see: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self._feed_forward(name + "feed_forward1", x)
        x = x + self._attention(name + "attention", x, may_see)
        x = x + self._convolution(name + "convolution", x)
        x = x + 0.5 * self._feed_forward(name + "feed_forward2", x)
        return self._norm(x, name + "norm_out")

    def _feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._linear(F.silu(self._linear(self._norm(x, name + ".norm"), name + ".up")), name + ".down")

    def _attention(self, name: str, x: torch.Tensor, may_see: torch.Tensor) -> torch.Tensor:
        tensors, heads = self._tensors, self._config.n_heads
        x = self._norm(x, name + ".norm")
        query, key, value = (
            self._linear(x, f"{name}.{part}").unflatten(1, (heads, -1)) for part in ("query", "key", "value")
        )  # each [T, H, dh]
        by_distance = self._distances(len(x)) @ tensors[name + ".position.weight"].t()
        position = by_distance.unflatten(1, (heads, -1))  # [2T - 1, H, dh]
        here = torch.arange(len(x))
        distance = here[:, None] - here[None, :] + len(x) - 1  # row of `position` for query i and key j
        content = torch.einsum("ihd,jhd->hij", query + tensors[name + ".position_bias_u"], key)
        place = torch.einsum("ihd,phd->hip", query + tensors[name + ".position_bias_v"], position)
        place = place.gather(2, distance.expand(heads, -1, -1))
        scores = ((content + place) / self._config.d_head**0.5).masked_fill(~may_see, -torch.inf)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value)
        return self._linear(mixed.flatten(1), name + ".out")

    def _distances(self, frames: int) -> torch.Tensor:
        """Sinusoids [2T - 1, D] of the distances -(T - 1) .. T - 1."""
        d = self._config.d_model
        distance = torch.arange(-(frames - 1), frames).float()
        rates = 10000.0 ** (-torch.arange(0, d, 2).float() / d)
        angles = distance[:, None] * rates[None, :]
        table = torch.zeros(len(distance), d)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        return table

    def _convolution(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = F.glu(self._linear(self._norm(x, name + ".norm"), name + ".pointwise1"), dim=1)
        weight = self._tensors[name + ".depthwise.weight"][:, None]  # [D, 1, k]
        span = weight.shape[2] - 1
        padded = F.pad(x.t()[None], (span // 2, span // 2) if self._config.is_offline else (span, 0))
        x = F.conv1d(padded, weight, self._tensors.get(name + ".depthwise.bias"), groups=len(weight))[0].t()
        if self._config.has_conv_layer_norm:
            x = self._norm(x, name + ".depthwise_norm")
        return self._linear(F.silu(x), name + ".pointwise2")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._tensors[name + ".weight"], self._tensors.get(name + ".bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self._tensors[name + ".weight"], self._tensors[name + ".bias"])


def _mask(frames: int, context: AttentionContext) -> torch.Tensor:
    """[T, T] bool: query i sees the keys of its own chunk and of the chunks within the left context."""
    chunk = torch.arange(frames) // (context.right + 1)
    chunks_back = chunk[:, None] - chunk[None, :]
    return (chunks_back >= 0) & (chunks_back <= context.left // (context.right + 1))


def _band_mask(frames: int, left: int, right: int) -> torch.Tensor:
    """[T, T] bool: query i sees the keys from i - left to i + right."""
    distance = torch.arange(frames)[:, None] - torch.arange(frames)[None, :]
    return (distance <= left) & (distance >= -right)


def _chunk_mask(frames: int, left: int, size: int, right: int) -> torch.Tensor:
    """[T, T] bool: query i sees its chunk of `size` keys, `left` before and `right` after the chunk."""
    begin, key = torch.arange(frames)[:, None] // size * size, torch.arange(frames)[None, :]
    return (begin - left <= key) & (key < begin + size + right)
