"""The encoder step in PyTorch: the reference, and the one for GPUs and for large models.

On a GPU kernels may take attention and convolution of a layer; the rest is the same.
"""

from functools import partial
from typing import NamedTuple

import torch

from penstock.encoder.attention import Attention, PageIndex, StepStreams, index_pages, relative_positions
from penstock.encoder.int8 import Int8Choice, SpeechChunks
from penstock.encoder.modules import Convolution, FeedForward, Norm, Subsampling, Tensors, subset
from penstock.encoder.state import EncoderState
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

    def step_fused(
        self, x: torch.Tensor, pages: torch.Tensor, conv_tails: torch.Tensor, rows: StepStreams
    ) -> torch.Tensor:
        """Does `step` in kernels over this layer's `EncoderState.kv_pages` and `conv_tails`."""
        x = self._feed_forward1.step(x)
        x = self._attention.step_fused(self._attention_norm(x), x, pages, rows)
        x = self._convolution.step_fused(x, conv_tails, rows.slots)
        return self._norm_out(self._feed_forward2.step(x))


class TorchStep:
    """One step of the network over the state, on any device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        state: EncoderState,
        dtype: torch.dtype,
        has_kernels: bool = False,
        int8: Int8Choice | None = None,
    ):
        """int8: replaces large products while the layers are read."""
        config, device = state.config, state.chunks_seen.device
        folded = torch.promote_types(dtype, torch.float32)

        def read(part: str) -> Tensors:
            """Weights as they are folded; a layer casts them last."""
            tensors = checkpoint.tensors(f"encoder.{part}.")
            return {name.removeprefix(f"encoder.{part}."): t.to(device, folded) for name, t in tensors.items()}

        self._state = state
        self._dtype, self.has_kernels = dtype, has_kernels
        self._subsampling = Subsampling(config, read("subsampling"), dtype)
        speech = SpeechChunks(checkpoint, state.context) if int8 is not None and int8.needs_speech else None
        if int8 is not None:
            int8.convert(
                "subsampling",
                self._subsampling,
                None if speech is None else partial(speech.subsample, self._subsampling),
            )
        positions = relative_positions(state.context, config.d_model, device, folded)
        # Layers store their weights in another order: read one at a time, no more than one is in memory twice.
        self._layers: list[ConformerLayer] = []
        for i in range(config.n_layers):
            layer = ConformerLayer(config, positions, read(f"layers.{i}"), dtype)
            if int8 is not None:
                int8.convert(f"layers.{i}", layer, None if speech is None else partial(speech.run_layer, i, layer.step))
            self._layers.append(layer)
            trim_heap()

    def __call__(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """Implements `StreamingEncoder.step`."""
        state = self._state
        # 1) subsample in time, [B, N, F] -> [B * T, D]
        chunks_seen = state.chunks_seen.index_select(0, slots)
        subsampled = self._subsampling.step(
            mel.to(self._dtype), state.columns_of(slots), chunks_seen == 0, valid_mel_frames
        )
        # 2) run the layers; keys and values stay in their pages
        rows = StepStreams(slots, chunks_seen, subsampled.valid_encoder_frames)
        run = self._run_kernels if self.has_kernels else self._run_layers
        x = run(subsampled.frames, rows)
        # 3) write the small states back
        state.advance(slots, chunks_seen, subsampled.columns)
        return Encoded(x.view(len(slots), -1, state.config.d_model), subsampled.valid_encoder_frames)

    def _run_layers(self, x: torch.Tensor, rows: StepStreams) -> torch.Tensor:
        """Maps x [B * T, D] to the same shape; the pages are indexed once for all layers."""
        state = self._state
        index = index_pages(
            state.halves_of(rows.slots),
            state.page_ages(rows.chunks_seen),
            rows,
            state.context.chunk_encoder_frames,
            self._dtype,
        )
        windows = state.conv_windows(rows.slots)
        memory = zip(state.flat_pages, state.flat_halves, windows.all, windows.ends, strict=True)
        for layer, (pages, halves, window, window_end) in zip(self._layers, memory, strict=True):
            x = layer.step(x, pages, halves, index, window, window_end)
        state.keep_windows(rows.slots, windows)
        return x

    def _run_kernels(self, x: torch.Tensor, rows: StepStreams) -> torch.Tensor:
        """Does `_run_layers` on the state in its place."""
        memory = zip(self._layers, self._state.kv_pages, self._state.conv_tails, strict=True)
        for layer, pages, conv_tails in memory:
            x = layer.step_fused(x, pages, conv_tails, rows)
        return x
