"""The configuration of a speaker model, and the shapes of its tensors."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import CheckpointError
from penstock.model.config import FeatureConfig

Shapes = dict[str, tuple[int, ...]]


class StepSize(NamedTuple):
    """Encoder frames of a step."""

    chunk: int
    right: int
    """Look-ahead: attended to, and part of the next chunk."""
    left: int = 0
    """Look-back: attended to again after the cached frames."""


class QueueSize(NamedTuple):
    """Encoder frames of the queue between the chunks and the speaker cache."""

    frames: int
    update: int
    """Frames that leave it at least when it overflows."""


@dataclass(frozen=True)
class CachePolicy:
    """Which frames the speaker cache keeps when it is compressed."""

    frames: int
    silence_frames: int
    """Places of each speaker that hold the silence embedding."""
    min_probability: float
    """Below it a logarithm is taken of it."""
    newest_boost: float
    strong_rate: float
    """Share of a speaker's places whose best frames get twice log 2."""
    weak_rate: float
    """Share of a speaker's places whose best frames get log 2."""
    positive_rate: float
    """Share of a speaker's places: with that many frames of it alone, frames with other speakers are left out."""


@dataclass(frozen=True)
class SpeakerConfig:
    """Of a transformer over [speaker cache | queue | look-back | chunk | look-ahead]."""

    features: FeatureConfig
    d_model: int
    n_layers: int
    n_heads: int
    d_feed_forward: int
    subsampling_factor: int
    d_head: int
    """Width of the layers after the transformer."""
    speakers: int
    """The most speakers that are told apart, in the order in which they first speak."""
    rope_theta: float
    rotary_share: float
    """Of the dimensions of a head, those that are rotated by the position."""
    cache: CachePolicy
    live_queue: QueueSize
    file_queue: QueueSize
    file_step: StepSize
    live_steps: dict[str, StepSize]
    """By mode, the default first."""

    def __post_init__(self) -> None:
        places = (1 + self.cache.silence_frames) * self.speakers
        if self.d_model % (2 * self.n_heads):
            raise CheckpointError(f"d_model {self.d_model} is not supported; supported: a multiple of twice n_heads")
        if self.cache.frames < places:
            raise CheckpointError(f"a speaker cache of {self.cache.frames} frames is not supported; at least {places}")
        if self.file_step.right >= self.file_step.chunk:
            raise CheckpointError(f"look-ahead {self.file_step.right} is not supported; supported: less than a chunk")

    @property
    def frame_s(self) -> float:
        """Duration of an encoder frame."""
        return self.subsampling_factor * self.features.hop_samples / self.features.sample_rate_hz


def speaker_shapes(config: SpeakerConfig) -> Shapes:
    """Returns the shape of every tensor of a bundle."""
    features, d, head = config.features, config.d_model, config.d_head
    shapes = {
        "features.window": (features.window_samples,),
        "features.mel_filterbank": (features.mel_bins, features.fft_samples // 2 + 1),
        "embedding.weight": (d, config.subsampling_factor * features.mel_bins),
    }
    shapes |= _norm("norm_in", d) | layer_shapes(config)
    shapes |= _norm("norm_out", d) | _linear("head.in", d, head)
    shapes |= {"head.upsampling.weight": (config.subsampling_factor * head, head, 3)}
    shapes |= {"head.upsampling.bias": (config.subsampling_factor * head,)}
    shapes |= _linear("head.hidden", head, head) | _linear("head.out", head, config.speakers)
    return shapes | {"silence": (d,)}


def layer_shapes(config: SpeakerConfig) -> Shapes:
    """Returns the shapes of the layers' tensors alone."""
    d = config.d_model
    shapes: Shapes = {}
    for layer in range(config.n_layers):
        place = f"layers.{layer}"
        shapes |= _norm(f"{place}.attention.norm", d) | _norm(f"{place}.feed_forward.norm", d)
        for name in ("query", "key", "value"):
            shapes[f"{place}.attention.{name}.weight"] = (d, d)
        shapes |= _linear(f"{place}.attention.out", d, d)
        shapes |= _linear(f"{place}.feed_forward.up", d, config.d_feed_forward)
        shapes |= _linear(f"{place}.feed_forward.down", config.d_feed_forward, d)
    return shapes


def _linear(name: str, d_in: int, d_out: int) -> Shapes:
    return {f"{name}.weight": (d_out, d_in), f"{name}.bias": (d_out,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
