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
    read_tensors,
    save_tensors,
    sha256_of,
)
from penstock.model.config import FeatureConfig
from penstock.speakers.config import CachePolicy, QueueSize, SpeakerConfig, StepSize, speaker_shapes

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT_VERSION = 1


class SpeakerCheckpoint:
    """A bundle opened for reading: `config` and `source` at once, tensors on demand."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        document = read_document(self.directory, SPEAKERS_FORMAT, (FORMAT_VERSION,))
        self.config = _config(document.get("model"), self.directory / CONFIG_FILE)
        self.source: dict[str, str] = document.get("source", {})
        self._sha256: dict[str, str] = document.get("sha256", {})
        if not (self.directory / WEIGHTS_FILE).is_file():
            raise CheckpointError(f"{self.directory}: {WEIGHTS_FILE} is missing")

    def checksum(self) -> str:
        """SHA-256 of the weights."""
        return self._sha256.get(WEIGHTS_FILE) or sha256_of(self.directory / WEIGHTS_FILE)

    def tensors(self) -> "dict[str, torch.Tensor]":
        """Returns all tensors as float32 on the CPU; raises CheckpointError as `Checkpoint.tensors`."""
        tensors = read_tensors(self.directory / WEIGHTS_FILE, speaker_shapes(self.config))
        return {name: tensor.float() for name, tensor in tensors.items()}


def write_speaker_checkpoint(
    directory: str | Path, config: SpeakerConfig, tensors: "dict[str, torch.Tensor]", source: dict[str, str]
) -> SpeakerCheckpoint:
    """Writes a bundle into `directory`, created if missing, and opens it; raises CheckpointError for a wrong tensor."""
    directory = Path(directory)
    save_tensors(directory / WEIGHTS_FILE, tensors, speaker_shapes(config))
    document = {
        "format": SPEAKERS_FORMAT,
        "version": FORMAT_VERSION,
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
