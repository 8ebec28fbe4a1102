"""Relative-position attention of one chunk over the pages of its stream (Transformer-XL, arXiv 1901.02860, 3.3).

Keys and values are projected once, when their chunk is encoded, and read from their pages afterwards.
"""

from typing import NamedTuple

import torch

from penstock.encoder.modules import Tensors, linear, subset
from penstock.linear import Linear
from penstock.model.config import AttentionContext, EncoderConfig


class StepStreams(NamedTuple):
    """The streams of one step, [B] int64 each."""

    slots: torch.Tensor
    chunks_seen: torch.Tensor
    """Chunks before this one."""
    valid_frames: torch.Tensor
    """Encoder frames of this chunk that hold audio."""


class PageIndex(NamedTuple):
    """The indices of one step, the same for all layers. B streams, P pages per stream, H heads."""

    current: torch.Tensor
    """[2 * H * B] int64, rows of the flattened pages that this chunk writes."""
    halves: torch.Tensor
    """[2 * H * B] int64, rows of the flattened halves: keys of each head and stream, then values."""
    columns: torch.Tensor
    """[B, T, P * T] int64, the column of the scores by distance that belongs to a query and a key."""
    bias: torch.Tensor
    """[B, 1, P * T], 0 for a visible key and very negative for the others."""
    block: slice | None
    """The same rows as `halves`, read without a copy: of a single stream on a CPU."""


def index_pages(
    halves: torch.Tensor, ages: torch.Tensor, rows: StepStreams, frames: int, dtype: torch.dtype
) -> PageIndex:
    """Builds the index. Keys stay in the order of their pages: softmax and its sums do not depend on it.

    halves: [2 * H, B], and ages: [B, P], from `EncoderState`; frames: of a chunk.
    """
    pages, frame = ages.shape[1], torch.arange(frames, device=ages.device)
    # 1) where this chunk is written
    current = halves * pages + torch.remainder(rows.chunks_seen, pages)
    # 2) query i has the place of key L + i, so the key at place j lies at distance L + i - j: column T - 1 - i + j
    place = ((pages - 1 - ages) * frames).unsqueeze(2) + frame  # [B, P, T]
    columns = place.flatten(1).unsqueeze(1) + (frames - 1 - frame).unsqueeze(1)
    # 3) visible: chunks that the stream has had, and frames of this one that hold audio
    last = torch.where(ages == 0, rows.valid_frames.unsqueeze(1), frames * (ages <= rows.chunks_seen.unsqueeze(1)))
    is_hidden = (frame >= last.unsqueeze(2)).flatten(1)
    # Finite, so that a padding row without a visible key gives numbers and not NaN.
    masked = torch.finfo(dtype).min / 4
    bias = torch.zeros(is_hidden.shape, dtype=dtype, device=ages.device).masked_fill_(is_hidden, masked)
    # 4) the halves of a stream are neighbors; reading a number from a GPU would synchronize
    first = int(halves[0, 0]) if halves.is_cpu and halves.shape[1] == 1 else None
    block = None if first is None else slice(first, first + len(halves))
    return PageIndex(current.flatten(), halves.flatten(), columns, bias.unsqueeze(1), block)


def relative_positions(
    context: AttentionContext, d_model: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Returns [L + 2T - 1, D], sinusoids of the distances L + T - 1 .. -(T - 1), the farthest key first."""
    frames = context.chunk_encoder_frames
    return distance_sinusoids(context.left + frames - 1, -frames, d_model, device, dtype)


def distance_sinusoids(farthest: int, end: int, d_model: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Returns [P, D], sinusoids of the distances farthest, farthest - 1 .. end + 1 from a key to a query."""
    distance = torch.arange(farthest, end, -1, dtype=torch.float32, device=device)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float32, device=device)
    angle = distance.unsqueeze(1) * torch.exp(exponent * -(torch.log(torch.tensor(10000.0)).item() / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(dtype)


class AttentionWeights(NamedTuple):
    """The weights of one layer; everything that depends on relative positions alone is computed once. H heads.

    With q the query without position bias, the score of the key k at distance p is (q + u) k + (q + v) p. The
    projection gives q' = q + u, scaled, so the second term is q' p + (v - u) p, and its last part is a constant.
    """

    qkv: torch.Tensor
    """[3 * D, D], scaled queries, keys and values."""
    qkv_bias: torch.Tensor
    """[3 * D]"""
    positions: torch.Tensor
    """[H, dh, L + 2T - 1], by distance, the farthest first."""
    bias: torch.Tensor
    """[H, 1, L + 2T - 1], the constant part of the scores by distance."""

    @classmethod
    def prepare(cls, config: EncoderConfig, positions: torch.Tensor, tensors: Tensors) -> "AttentionWeights":
        """positions: from `relative_positions`; tensors: the layer's."""
        scale = config.d_head**-0.5
        weights = (tensors["query.weight"] * scale, tensors["key.weight"], tensors["value.weight"])
        zeros = weights[0].new_zeros(config.d_model)
        bias_u, bias_v = tensors["position_bias_u"] * scale, tensors["position_bias_v"] * scale  # [H, dh]
        query_bias = tensors.get("query.bias", zeros) * scale + bias_u.flatten()
        biases = (query_bias, tensors.get("key.bias", zeros), tensors.get("value.bias", zeros))
        projected, bias = project_positions(config, positions, tensors["position.weight"], bias_v - bias_u)
        return cls(torch.cat(weights), torch.cat(biases), projected, bias)


def project_positions(
    config: EncoderConfig, positions: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `positions` and `bias` of `AttentionWeights` for sinusoids [P, D].

    weight: [D, D]; bias: v - u, scaled, [H, dh].
    """
    projected = positions @ weight.t()  # [P, D]
    projected = projected.view(-1, config.n_heads, config.d_head).permute(1, 2, 0).contiguous()
    return projected, torch.bmm(bias.unsqueeze(1), projected)


class Attention:
    """The attention of one layer."""

    def __init__(self, config: EncoderConfig, positions: torch.Tensor, tensors: Tensors, dtype: torch.dtype):
        """positions, tensors: as in `AttentionWeights.prepare`; dtype: of the computation."""
        self._heads, self._d_head = config.n_heads, config.d_head
        prepared = AttentionWeights.prepare(config, positions, tensors)
        weights = AttentionWeights(*(tensor.to(dtype) for tensor in prepared))
        self._qkv = Linear(weights.qkv, weights.qkv_bias)  # D to 3 * D
        self._out = linear(subset(tensors, "out"), dtype)
        self._positions, self._position_bias = weights.positions, weights.bias

    def step(
        self, x: torch.Tensor, residual: torch.Tensor, pages: torch.Tensor, halves: torch.Tensor, index: PageIndex
    ) -> torch.Tensor:
        """Returns residual + attention(x), [B * T, D].

        x: [B * T, D], normalized; pages: this layer's flattened pages [S * 2 * H * P, T * dh], of which the rows
        `index.current` are overwritten; halves: the same memory as [S * 2 * H, P * T * dh].
        """
        heads, d_head = self._heads, self._d_head
        batch = index.bias.shape[0]
        frames = pages.shape[1] // d_head
        # 1) project queries, keys and values
        qkv = self._qkv(x).view(batch, frames, 3, heads, d_head)
        query, new = qkv.permute(2, 3, 0, 1, 4).contiguous().split((1, 2))  # [1 and 2, H, B, T, dh]
        # 2) store this chunk's page, then read all pages of each stream as they lie
        pages.index_copy_(0, index.current, new.view(-1, frames * d_head))
        stored = halves.index_select(0, index.halves) if index.block is None else halves[index.block]
        keys, values = stored.view(2, heads * batch, -1, d_head)  # [H * B, P * T, dh]
        # 3) score positions, put them into the order of keys, then add the scores of contents
        by_distance = torch.bmm(query.view(heads, -1, d_head), self._positions).add_(self._position_bias)
        by_distance = by_distance.view(heads, batch, frames, -1)
        bias = by_distance.gather(3, index.columns.expand(heads, -1, -1, -1)).add_(index.bias)  # [H, B, T, P * T]
        query = query.view(heads * batch, frames, d_head)
        scores = torch.baddbmm(bias.view(heads * batch, frames, -1), query, keys.transpose(1, 2))
        # 4) mix values, join heads, project
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)  # [H * B, T, dh]
        mixed = mixed.view(heads, -1, d_head).transpose(0, 1).reshape(batch * frames, -1)
        return self._out.add_to(residual, mixed)

    def step_fused(
        self, x: torch.Tensor, residual: torch.Tensor, pages: torch.Tensor, rows: StepStreams
    ) -> torch.Tensor:
        """Does `step` in a kernel. pages: this layer's of `EncoderState.kv_pages`."""
        from penstock.kernels.chunk_step import attend_pages  # here, because it imports Triton

        qkv = self._qkv(x)  # [B * T, 3 * D]
        query = qkv[:, : residual.shape[1]].view(len(qkv), self._heads, self._d_head).transpose(0, 1)  # [H, B * T, dh]
        by_distance = torch.baddbmm(self._position_bias, query, self._positions)
        mixed = attend_pages(qkv, by_distance, pages, rows.slots, rows.chunks_seen, rows.valid_frames)
        return self._out.add_to(residual, mixed)
