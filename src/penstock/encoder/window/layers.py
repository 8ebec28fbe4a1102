"""One layer of the window encoder over a strip: each part runs block by block, so that a step stays short.

Feed-forward, norms and projections are those of the streaming encoder.
"""

from collections.abc import Iterator, Sequence

import torch

from penstock.encoder.modules import Convolution, FeedForward, Norm, Tensors, subset
from penstock.encoder.window.attention import RowsOfReach, WindowAttention
from penstock.encoder.window.strip import Strip
from penstock.model.config import EncoderConfig

BLOCK_NUMBERS = 1 << 18
"""Numbers of the strip whose activations exist at once: 512 frames at D = 512, at most 0.1 s of one core's work."""
GROUP_NUMBERS = 1 << 22
"""The same where rows are grouped."""
LAYER_PARTS = 4
"""Parts of a layer's work: before, in and after the attention, and from the convolution on."""


class Workspace:
    """The memory of a batch beside its strip, the same for all layers. M frames, G zeros between rows."""

    def __init__(self, x: torch.Tensor, strip: Strip, heads: int):
        """x: [M, D], the strip."""
        frames, d = x.shape
        memory = x.new_empty(max(3 * frames, frames + strip.padded_frames), d)
        self.projected = memory[: 3 * frames].view(3, heads, frames, -1)
        """Queries, keys and values [3, H, M, dh]; then what each query mixes in its place."""
        self.padded = memory[frames : frames + strip.padded_frames]
        """Inputs of the depthwise convolution [G + M, D], in the place of keys and values."""


class WindowLayer:
    """One layer: half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, config: EncoderConfig, tensors: Tensors, dtype: torch.dtype, is_grouped: bool):
        self._is_grouped = is_grouped
        self._feed_forward1 = FeedForward(subset(tensors, "feed_forward1"), dtype)
        self._attention_norm = Norm(subset(tensors, "attention.norm"), dtype)
        self._attention = WindowAttention(config, subset(tensors, "attention"), dtype, is_grouped)
        self._convolution = Convolution(subset(tensors, "convolution"), dtype)
        self._feed_forward2 = FeedForward(subset(tensors, "feed_forward2"), dtype)
        self._norm_out = Norm(subset(tensors, "norm_out"), dtype)

    def run(self, x: torch.Tensor, strip: Strip, rows: Sequence[RowsOfReach], work: Workspace) -> Iterator[int]:
        """Replaces x [M, D] by the layer's output; rows: all of the strip.

        Yields after each block the number of frames of which one of `LAYER_PARTS` parts is done.
        """
        size = max((GROUP_NUMBERS if self._is_grouped else BLOCK_NUMBERS) // x.shape[1], 1)
        # 1) feed-forward, queries, keys and values
        for block in strip.blocks(size):
            x[block] = self._feed_forward1.step(x[block])
            self._attention.project(self._attention_norm(x[block]), work.projected[:, :, block])
            yield block.stop - block.start
        # 2) attention within each row
        longest = max(each.scored_frames for each in rows)
        positions = yield from self._attention.positions(longest)
        within = {reach: positions.within(reach) for reach in {each.reach for each in rows}}
        for each in rows:
            yield from self._attention.mix(work.projected, each.rows, within[each.reach], each.reach)
        # 3) its output, and inputs of the convolution
        work.padded.index_fill_(0, strip.zeros, 0.0)
        for block in strip.blocks(size):
            x[block] = self._attention.add_to(x[block], work.projected[0, :, block])
            value, gate = self._convolution.gates(x[block]).chunk(2, dim=1)
            work.padded.index_copy_(0, strip.places[block], value * gate.sigmoid_())
            yield block.stop - block.start
        # 4) convolution, feed-forward, norm
        for block in strip.blocks(size):
            reach = strip.reach(block)
            mixed = self._convolution.mix(work.padded[reach].unsqueeze(0)).view(-1, x.shape[1])
            if len(mixed) > block.stop - block.start:  # also those of zeros between rows
                mixed = mixed.index_select(0, strip.places[block] - strip.gap - reach.start)
            x[block] = self._norm_out(self._feed_forward2.step(self._convolution.finish(x[block], mixed)))
            yield block.stop - block.start
