"""The position of a model's chunks on the sample axis. Needs no torch: `penstock serve` publishes it."""

from dataclasses import dataclass

from penstock.model.config import AttentionContext, ModelConfig


@dataclass(frozen=True)
class ChunkGeometry:
    """The position of chunks on the sample axis. `frame_samples` is the analysis window of one frame."""

    chunk_mel_frames: int
    virtual_mel_frames: int
    hop_samples: int
    frame_samples: int

    @property
    def chunk_samples(self) -> int:
        """Samples from one chunk's window to the next one's."""
        return self.chunk_mel_frames * self.hop_samples

    @property
    def window_samples(self) -> int:
        """Samples that the frames of one chunk span, and one more for pre-emphasis."""
        return (self.chunk_mel_frames - 1) * self.hop_samples + self.frame_samples + 1

    @property
    def lead_samples(self) -> int:
        """Samples of the first window that lie before the stream's first sample."""
        return self.virtual_mel_frames * self.hop_samples + self.frame_samples // 2 + 1

    @property
    def first_chunk_samples(self) -> int:
        """Samples of a segment that complete its first chunk; each further chunk needs `chunk_samples` more."""
        return self.window_samples - self.lead_samples


def chunk_geometry(config: ModelConfig, context: AttentionContext) -> ChunkGeometry:
    """Returns the geometry of chunks of `factor * (right + 1)` mel frames."""
    factor = config.encoder.subsampling_factor
    return ChunkGeometry(
        chunk_mel_frames=factor * context.chunk_encoder_frames,
        virtual_mel_frames=factor - 1,
        hop_samples=config.features.hop_samples,
        frame_samples=config.features.window_samples,
    )
