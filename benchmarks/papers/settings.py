"""What a run measures: sizes, data and where its files go."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.kernels.capability import FUSED, TORCH


@dataclass(frozen=True)
class Settings:
    """Options of a run. The default takes about half an hour on two cores, `quick` some minutes."""

    device: str
    shapes: tuple[str, ...]
    """Keys of `speed.SHAPES`."""
    manifest: Path
    """Recordings whose words are counted."""
    train: Path | None
    """Manifest of the recordings that language models, graphs and heads are trained on; None: without these rows."""
    work: Path
    """Folder for files that are made on the way."""
    with_nemo: bool
    batches: tuple[int, ...] = (1, 4, 16, 32)
    beam_batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    beams: tuple[int, ...] = (1, 2, 4, 8, 12)
    stream_s: float = 6.4
    """Of each stream of a random model: the mean of LibriSpeech test-other."""
    rounds: int = 3
    threads: int = 1
    recordings: int | None = None
    """Of the manifest; None for all."""
    copies: int = 1
    """Augmented copies of the recordings that heads are trained on."""
    epochs: float = 5.0
    mwer_steps: int = 120
    ilm_steps: int = 600
    live_streams: int = 8
    live_minutes: float = 1.0

    @property
    def kernels(self) -> tuple[str, ...]:
        """Of greedy search."""
        return (TORCH, FUSED) if self.device.startswith("cuda") else (TORCH,)

    @classmethod
    def quick(cls, **chosen: object) -> "Settings":
        """Sizes with which a run shows that it works; its times mean little."""
        small: dict = {
            "batches": (1, 4), "beam_batches": (1, 4), "beams": (1, 4), "stream_s": 3.2, "rounds": 1, "recordings": 20,
            "copies": 0, "epochs": 3.0, "mwer_steps": 10, "ilm_steps": 100, "live_streams": 2, "live_minutes": 0.2,
        }  # fmt: skip
        return cls(**{**small, **chosen})

    def dump(self) -> str:
        """As JSON text, for `load`."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def load(cls, text: str) -> "Settings":
        """Reads what `dump` wrote."""
        found = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
        found |= {name: Path(found[name]) for name in ("manifest", "train", "work") if found[name] is not None}
        return cls(**found)
