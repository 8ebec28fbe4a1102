"""An encoder with random weights: what encoding costs where there is no trained model.

Stands in for a checkpoint where only a `StreamingEncoder` is made of it. Knows no decoder.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.checkpoint import tensor_shapes
from penstock.config import AttentionContext, EncoderConfig, FeatureConfig, ModelConfig, TransducerConfig

NO_ENCODER = "none"
_MEL_BINS, _KERNEL, _FACTOR = 80, 9, 8
_FEED_FORWARD = 4
"""Widths of a feed-forward block in widths of the encoder."""
_FEATURES = FeatureConfig(16000, 400, 160, 512, _MEL_BINS, 0.97, 2**-24)
_TRANSDUCER = TransducerConfig(1, 1, 1, 1, "relu", ())


class EncoderSizes(NamedTuple):
    """Of a FastConformer with kernels of 9 frames, feed-forward blocks 4 times as wide, 8 mel frames to a frame."""

    layers: int
    width: int
    heads: int
    subsampling_channels: int


ENCODERS = {
    "small": EncoderSizes(8, 144, 4, 64),
    "large": EncoderSizes(17, 512, 8, 256),
    "xlarge": EncoderSizes(24, 1024, 8, 256),
}
"""As the model that comes with the repository, and as NeMo's FastConformer configurations of these names."""


@dataclass(frozen=True)
class _Config:
    encoder: EncoderConfig


class RandomEncoder:
    """The part of a `Checkpoint` that concerns the encoder."""

    def __init__(self, sizes: EncoderSizes, context: AttentionContext, seed: int = 0):
        """CheckpointError for a context that no encoder can have."""
        self.config = _Config(
            EncoderConfig(
                mel_bins=_MEL_BINS,
                n_layers=sizes.layers,
                d_model=sizes.width,
                n_heads=sizes.heads,
                d_feed_forward=_FEED_FORWARD * sizes.width,
                conv_kernel_size=_KERNEL,
                has_conv_layer_norm=False,
                use_bias=True,
                xscaling=False,
                subsampling_factor=_FACTOR,
                subsampling_channels=sizes.subsampling_channels,
                contexts=(context,),
            )
        )
        self._generator = torch.Generator().manual_seed(seed)

    def tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """As `Checkpoint.tensors`; others with every call."""
        shapes = tensor_shapes(ModelConfig(_FEATURES, self.config.encoder, _TRANSDUCER))
        return {name: self._draw(name, shape) for name, shape in shapes.items() if name.startswith(prefix)}

    def mel(self, chunks: int, batch: int, mel_frames: int) -> torch.Tensor:
        """Random log-mel [C, B, N, F]; another with every call."""
        return torch.randn(chunks, batch, mel_frames, _MEL_BINS, generator=self._generator)

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Scales that keep what goes through the layers near 1."""
        if name.endswith("bias"):
            return torch.zeros(shape)
        if "norm" in name:
            return torch.ones(shape)
        noise = torch.randn(shape, generator=self._generator)
        return noise / noise[0].numel() ** 0.5
