"""The streaming FastConformer encoder: one static shape for streams of every age.

Output equals the same network run over the whole utterance with the same attention context.
"""

from typing import NamedTuple

import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.device import prepare_device
from penstock.encoder.attention import find_page_rows, relative_positions
from penstock.encoder.layer import ConformerLayer
from penstock.encoder.linear import subset
from penstock.encoder.state import EncoderState
from penstock.encoder.subsampling import Subsampling


class Encoded(NamedTuple):
    """Encoder output of one chunk of B streams."""

    frames: torch.Tensor
    """[B, T, D]"""
    valid_encoder_frames: torch.Tensor
    """[B] int64, frames that hold audio; the others mean nothing."""


class StreamingEncoder:
    """Encodes one chunk of many streams at a time; each stream's state lives in a slot."""

    def __init__(
        self, checkpoint: Checkpoint, context: AttentionContext, slots: int, device="cpu", dtype=torch.float32
    ):
        config = checkpoint.config.encoder
        device = prepare_device(device)
        tensors = {n: t.to(device, dtype) for n, t in checkpoint.tensors("encoder.").items()}
        self.context = config.select_context(context)
        self.config = config
        self.state = EncoderState(config, self.context, slots, device, dtype)
        self._dtype = dtype
        self._subsampling = Subsampling(config, subset(tensors, "encoder.subsampling"))
        positions = relative_positions(self.context, config.d_model, device, dtype)
        self._layers = [
            ConformerLayer(config, positions, subset(tensors, f"encoder.layers.{i}")) for i in range(config.n_layers)
        ]

    def open(self, slots: torch.Tensor) -> None:
        """Gives `slots` [n] int64 to new streams."""
        self.state.reset(slots)

    @torch.inference_mode()
    def step(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """Encodes one chunk of each stream and moves the streams on.

        slots: [B] int64, all different; mel: [B, N, F] float32, N = factor * T; valid_mel_frames: [B] int64, N but for
        a stream's last chunk. Never synchronises with the host.
        """
        state = self.state
        rows = state.gather(slots)
        is_first = rows.chunks_seen == 0
        subsampled = self._subsampling.step(mel.to(self._dtype), rows.subsampling_columns, is_first, valid_mel_frames)
        attention_rows = find_page_rows(
            state.page_table(slots, rows.chunks_seen),
            self._keys_seen(rows.chunks_seen, subsampled.valid_encoder_frames),
            self._dtype,
        )
        x = subsampled.frames  # [B * T, D]
        per_layer = zip(self._layers, state.page_rows, rows.conv_windows, rows.conv_window_ends, strict=True)
        for layer, page_rows, window, window_end in per_layer:
            x = layer.step(x, page_rows, attention_rows, window, window_end)
        state.scatter(slots, rows, subsampled.columns)
        return Encoded(x.view(len(slots), -1, self.config.d_model), subsampled.valid_encoder_frames)

    def _keys_seen(self, chunks_seen: torch.Tensor, valid_encoder_frames: torch.Tensor) -> torch.Tensor:
        """[B, pages * T] bool: pages old enough to exist, and of the chunk at work the frames that hold audio."""
        frames = self.context.chunk_encoder_frames
        is_live = self.state.page_is_live(chunks_seen).repeat_interleave(frames, dim=1)
        position = torch.arange(frames, device=chunks_seen.device)
        is_live[:, -frames:] &= position < valid_encoder_frames.unsqueeze(1)
        return is_live
