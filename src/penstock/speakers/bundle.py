"""A speaker model's bundle: config.json and weights.safetensors, as `penstock.model.bundle` has them."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from penstock.speakers.config import CachePolicy, QueueSize, SpeakerConfig, StepSize, layer_shapes, speaker_shapes

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT_VERSION, INT8_FORMAT_VERSION = 1, 2


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
