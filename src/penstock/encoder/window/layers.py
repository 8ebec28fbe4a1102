"""One layer of the window encoder over a strip: each part runs block by block, so that a step stays short.

Feed-forward, norms and projections are those of the streaming encoder.
"""

from collections.abc import Iterator, Sequence

import torch

from penstock.encoder.modules import Convolution, FeedForward, Norm, Tensors, subset
from penstock.encoder.window.attention import Band, WindowAttention, scored_frames
from penstock.encoder.window.strip import Strip
from penstock.model.config import EncoderConfig

BLOCK_FRAMES = 512
"""Frames of the strip whose activations exist at once."""


class Workspace:
    """The memory of a batch beside its strip, the same for all layers. M frames, G zeros between rows."""

    def __init__(self, x: torch.Tensor, strip: Strip):
        """x: [M, D], the strip."""
        d = x.shape[1]
        self.qkv = x.new_empty(strip.frames, 3 * d)
        """Queries, keys and values."""
        self.mixed = x.new_empty(strip.frames, d)
        """Mixed values."""
        self.padded = x.new_zeros(strip.padded_frames, d)
        """Inputs of the depthwise convolution; zeros between rows, which no layer writes."""


class WindowLayer:
    """One layer: half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype):
        self._feed_forward1 = FeedForward(subset(tensors, "feed_forward1"), dtype)
        self._attention_norm = Norm(subset(tensors, "attention.norm"), dtype)
        self._attention = WindowAttention(config, subset(tensors, "attention"), dtype)
        self._convolution = Convolution(subset(tensors, "convolution"), dtype)
        self._feed_forward2 = FeedForward(subset(tensors, "feed_forward2"), dtype)
        self._norm_out = Norm(subset(tensors, "norm_out"), dtype)

    def run(self, x: torch.Tensor, strip: Strip, bands: Sequence[Band | None], work: Workspace) -> Iterator[None]:
        """Replaces x [M, D] by the layer's output, a block between two yields; bands: of each row."""
        # 1) feed-forward, queries, keys and values
        for block in strip.blocks(BLOCK_FRAMES):
            x[block] = self._feed_forward1.step(x[block])
            work.qkv[block] = self._attention.project(self._attention_norm(x[block]))
            yield
        # 2) attention within each row
        rows = list(zip(strip.rows(), strip.lengths, bands, strict=True))
        positions = yield from self._attention.positions(max(scored_frames(length, band) for _, length, band in rows))
        within = {band: positions.within(band) for band in set(bands)}
        for row, _, band in rows:
            yield from self._attention.mix(work.qkv[row], within[band], band, work.mixed[row])
        # 3) its output, and inputs of the convolution
        for block in strip.blocks(BLOCK_FRAMES):
            x[block] = self._attention.add_to(x[block], work.mixed[block])
            value, gate = self._convolution.gates(x[block]).chunk(2, dim=1)
            work.padded.index_copy_(0, strip.places[block], value * gate.sigmoid_())
            yield
        # 4) convolution, feed-forward, norm
        for block in strip.blocks(BLOCK_FRAMES):
            reach = strip.reach(block)
            mixed = self._convolution.mix(work.padded[reach].unsqueeze(0)).view(-1, x.shape[1])
            if len(mixed) > block.stop - block.start:  # also those of zeros between rows
                mixed = mixed.index_select(0, strip.places[block] - strip.gap - reach.start)
            x[block] = self._norm_out(self._feed_forward2.step(self._convolution.finish(x[block], mixed)))
            yield
