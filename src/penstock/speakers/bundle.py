"""A speaker model's bundle: its configuration and its weights, as `penstock.model.bundle` has those of a recognizer."""

import dataclasses
import json
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
    sha256_of,
)
from penstock.model.config import FeatureConfig
from penstock.model.int8_tensors import Int8Tensor, StoredTensors, int8_keys, int8_names, int8_parts

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT_VERSION, INT8_FORMAT_VERSION = 1, 2
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


class SpeakerCheckpoint:
    """A bundle opened for reading: `config` and `source` at once, tensors on demand."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        document = read_document(self.directory, SPEAKERS_FORMAT, (FORMAT_VERSION, INT8_FORMAT_VERSION))
        self.config = _config(document.get("model"), self.directory / CONFIG_FILE)
        self.source: dict[str, str] = document.get("source", {})
        self._sha256: dict[str, str] = document.get("sha256", {})
        shapes = layer_shapes(self.config)
        self.int8 = int8_names(document, shapes, "layers", self.directory / CONFIG_FILE)
        """Names of the tensors that are stored in int8."""
        self._stored = StoredTensors(self.directory / WEIGHTS_FILE, self.int8)
        if not (self.directory / WEIGHTS_FILE).is_file():
            raise CheckpointError(f"{self.directory}: {WEIGHTS_FILE} is missing")

    def checksum(self) -> str:
        """SHA-256 of the weights."""
        return self._sha256.get(WEIGHTS_FILE) or sha256_of(self.directory / WEIGHTS_FILE)

    def tensors(self, *prefixes: str, as_stored: bool = False) -> "dict[str, torch.Tensor]":
        """Returns tensors on the CPU and raises CheckpointError as `Checkpoint.tensors`."""
        wanted = {n: s for n, s in speaker_shapes(self.config).items() if not prefixes or n.startswith(prefixes)}
        tensors = self._stored.read(wanted)
        return {name: tensor if as_stored else tensor.float() for name, tensor in tensors.items()}

    def factors(self, name: str) -> "torch.Tensor":
        """As `Checkpoint.factors`."""
        return self._stored.factors(name, speaker_shapes(self.config)[name])


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
        "version": INT8_FORMAT_VERSION if int8 else FORMAT_VERSION,
        **int8_keys(int8),
        "source": source,
        "sha256": {WEIGHTS_FILE: sha256_of(directory / WEIGHTS_FILE)},
        "model": dataclasses.asdict(config),
    }
    (directory / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
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
