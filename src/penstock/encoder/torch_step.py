"""The encoder step in PyTorch: the reference, and the one for GPUs and for large models."""

from typing import NamedTuple

import torch

from penstock.encoder.attention import Attention, PageIndex, index_pages, relative_positions
from penstock.encoder.modules import Convolution, FeedForward, Norm, Tensors, subset
from penstock.encoder.state import EncoderState
from penstock.encoder.subsampling import Subsampling
from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig
from penstock.runtime import trim_heap


class Encoded(NamedTuple):
    """Encoder output of one chunk of B streams."""

    frames: torch.Tensor
    """[B, T, D]"""
    valid_encoder_frames: torch.Tensor
    """[B] int64, frames that hold audio; the content of the others is undefined."""


class ConformerLayer:
    """One layer: half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, config: EncoderConfig, positions: torch.Tensor, tensors: Tensors, dtype: torch.dtype):
        self._feed_forward1 = FeedForward(subset(tensors, "feed_forward1"), dtype)
        self._attention_norm = Norm(subset(tensors, "attention.norm"), dtype)
        self._attention = Attention(config, positions, subset(tensors, "attention"), dtype)
        self._convolution = Convolution(subset(tensors, "convolution"), dtype)
        self._feed_forward2 = FeedForward(subset(tensors, "feed_forward2"), dtype)
        self._norm_out = Norm(subset(tensors, "norm_out"), dtype)

    def step(
        self,
        x: torch.Tensor,
        pages: torch.Tensor,
        halves: torch.Tensor,
        index: PageIndex,
        conv_window: torch.Tensor,
        conv_window_end: torch.Tensor,
    ) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape; writes this chunk's pages and the end of its convolution window."""
        x = self._feed_forward1.step(x)
        x = self._attention.step(self._attention_norm(x), x, pages, halves, index)
        x = self._convolution.step(x, conv_window, conv_window_end)
        return self._norm_out(self._feed_forward2.step(x))


class TorchStep:
    """One step of the network over the state, on any device."""

    def __init__(self, checkpoint: Checkpoint, state: EncoderState, dtype: torch.dtype):
        config, device = state.config, state.chunks_seen.device
        folded = torch.promote_types(dtype, torch.float32)

        def read(part: str) -> Tensors:
            """Weights as they are folded; a layer casts them last."""
            tensors = checkpoint.tensors(f"encoder.{part}.")
            return {name.removeprefix(f"encoder.{part}."): t.to(device, folded) for name, t in tensors.items()}

        self._state = state
        self._dtype = dtype
        self._subsampling = Subsampling(config, read("subsampling"), dtype)
        positions = relative_positions(state.context, config.d_model, device, folded)
        # Layers store their weights in another order: read one at a time, no more than one is in memory twice.
        self._layers: list[ConformerLayer] = []
        for i in range(config.n_layers):
            self._layers.append(ConformerLayer(config, positions, read(f"layers.{i}"), dtype))
            trim_heap()

    def __call__(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """As `StreamingEncoder.step`."""
        state = self._state
        # 1) gather the small states; keys and values stay in their pages
        gathered = state.gather(slots)
        # 2) subsample in time, [B, N, F] -> [B * T, D]
        is_first = gathered.chunks_seen == 0
        subsampled = self._subsampling.step(
            mel.to(self._dtype), gathered.subsampling_columns, is_first, valid_mel_frames
        )
        # 3) index the pages once for all layers
        index = index_pages(
            state.halves_of(slots),
            state.page_ages(gathered.chunks_seen),
            gathered.chunks_seen,
            subsampled.valid_encoder_frames,
            state.context.chunk_encoder_frames,
            self._dtype,
        )
        # 4) run the layers
        x = subsampled.frames
        memory = zip(state.flat_pages, state.flat_halves, gathered.conv_windows, gathered.conv_window_ends, strict=True)
        for layer, (pages, halves, window, window_end) in zip(self._layers, memory, strict=True):
            x = layer.step(x, pages, halves, index, window, window_end)
        # 5) write the small states back
        state.scatter(slots, gathered, subsampled.columns)
        return Encoded(x.view(len(slots), -1, state.config.d_model), subsampled.valid_encoder_frames)
