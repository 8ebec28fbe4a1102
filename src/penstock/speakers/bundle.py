"""A speaker model's bundle: its configuration and its weights, as `penstock.model.bundle` has those of a recognizer."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import CheckpointError
from penstock.model.bundle_files import (
    CONFIG_FILE,
    SPEAKERS_FORMAT,
    WEIGHTS_FILE,
    read_document,
    save_tensors,
    write_document,
)
from penstock.model.config import FeatureConfig
from penstock.model.int8_tensors import Int8Tensor, StoredBundle, int8_keys, int8_names, int8_parts
from penstock.model.limits import MAX_LAYERS, require, require_integers, require_numbers

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, FORMAT_VERSION)
_MAX_FRAMES, _MAX_SPEAKERS, _MAX_RATE, _MAX_THETA = 4096, 64, 100.0, 1e9
"""Encoder frames of a chunk, queue or cache; speakers; shares; base of the rotations."""
_LEAST_PROBABILITY = 1e-9
FILE = "file"
"""The mode with the steps of whole recordings."""
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
    """Rules for the frames that the speaker cache keeps when it is compressed."""

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

    def __post_init__(self) -> None:
        require_integers(self, "frames", most=_MAX_FRAMES)
        require_integers(self, "silence_frames", least=0, most=_MAX_FRAMES)
        require_numbers(self, "min_probability", least=_LEAST_PROBABILITY)
        require_numbers(self, "newest_boost", "strong_rate", "weak_rate", "positive_rate", most=_MAX_RATE)


@dataclass(frozen=True)
class SpeakerConfig:
    """Configuration of a transformer over [speaker cache | queue | look-back | chunk | look-ahead]."""

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
    """Share of a head's dimensions that are rotated by the position."""
    cache: CachePolicy
    live_queue: QueueSize
    file_queue: QueueSize
    file_step: StepSize
    live_steps: dict[str, StepSize]
    """By mode, the default first."""

    def __post_init__(self) -> None:
        require(not self.features.is_normalized, "is_normalized", True, "false")
        require_integers(self, "d_model", "n_heads", "d_feed_forward", "subsampling_factor", "d_head")
        require_integers(self, "n_layers", most=MAX_LAYERS)
        require_integers(self, "speakers", most=_MAX_SPEAKERS)
        require_numbers(self, "rope_theta", least=1.0, most=_MAX_THETA)
        require_numbers(self, "rotary_share")
        require(self.d_model % (2 * self.n_heads) == 0, "d_model", self.d_model, "a multiple of twice n_heads")
        rotated = int(self.d_model // self.n_heads * self.rotary_share)
        require(rotated > 0 and rotated % 2 == 0, "rotary_share", self.rotary_share, "an even share of a head")
        places = (1 + self.cache.silence_frames) * self.speakers
        require(self.cache.frames >= places, "cache.frames", self.cache.frames, f"at least {places}")
        require(bool(self.live_steps), "live_steps", self.live_steps, "at least one mode")
        for size in (self.live_queue, self.file_queue):
            require_integers(size, *size._fields, most=_MAX_FRAMES)
        for step in (self.file_step, *self.live_steps.values()):
            require_integers(step, "chunk", most=_MAX_FRAMES)
            require_integers(step, "right", "left", least=0, most=_MAX_FRAMES)
        chunk, right = self.file_step.chunk, self.file_step.right
        require(right < chunk, "look-ahead", right, "less than a chunk")

    @property
    def steps(self) -> dict[str, StepSize]:
        """The steps of each mode, the default first."""
        return {**self.live_steps, FILE: self.file_step}

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


class SpeakerCheckpoint(StoredBundle):
    """A speaker model's bundle opened for reading."""

    def __init__(self, directory: str | Path, is_verified: bool = False):
        directory = Path(directory)
        document = read_document(directory, SPEAKERS_FORMAT, _READABLE_VERSIONS)
        self.config = _config(document.get("model"), directory / CONFIG_FILE)
        int8 = int8_names(document, layer_shapes(self.config), "layers", directory / CONFIG_FILE)
        super().__init__(directory, document, (WEIGHTS_FILE,), speaker_shapes(self.config), int8, is_verified)


def write_speaker_checkpoint(
    directory: str | Path,
    config: SpeakerConfig,
    tensors: "dict[str, torch.Tensor]",
    source: dict[str, str],
    int8: dict[str, Int8Tensor] | None = None,
) -> SpeakerCheckpoint:
    """Writes a bundle into `directory`, created if missing, and opens it; raises CheckpointError for a wrong tensor.

    int8: what is stored in place of some tensors.
    """
    directory = Path(directory)
    save_tensors(directory / WEIGHTS_FILE, tensors, speaker_shapes(config), int8_parts(int8))
    document = {
        "format": SPEAKERS_FORMAT,
        "version": FORMAT_VERSION,
        **int8_keys(int8),
        "source": source,
        "model": dataclasses.asdict(config),
    }
    write_document(directory, document, (WEIGHTS_FILE,))
    return SpeakerCheckpoint(directory)


def _config(model: Any, path: Path) -> SpeakerConfig:
    try:
        return SpeakerConfig(
            **model
            | {
                "features": FeatureConfig(**model["features"]),
                "cache": CachePolicy(**model["cache"]),
                "live_queue": QueueSize(*model["live_queue"]),
                "file_queue": QueueSize(*model["file_queue"]),
                "file_step": StepSize(*model["file_step"]),
                "live_steps": {name: StepSize(*size) for name, size in model["live_steps"].items()},
            }
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f'{path}: "model" does not fit the schema: {error}') from error
