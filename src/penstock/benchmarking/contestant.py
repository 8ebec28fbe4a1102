"""What a benchmark of decoders compares: who decodes and how, the chunks all of them get, and the labels they find.

Knows no decoder and no clock.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from penstock.kernels.capability import FUSED, TORCH

PENSTOCK, NEMO = "penstock", "nemo"
PRECOMPUTED, EACH_TIME = "precomputed", "each time"
CHUNKS, WHOLE = "chunks", "whole"


@dataclass(frozen=True)
class Entry:
    """One line of the result."""

    implementation: str
    """`PENSTOCK` or `NEMO`."""
    decoder: str
    driver: str
    """eager, staged or while; for NeMo eager or graphs."""
    beam: int | None = None
    """None for greedy search."""
    projections: str = PRECOMPUTED
    """`PRECOMPUTED` once a chunk and label, or `EACH_TIME` anew for each pair that the joint scores."""
    span: str = CHUNKS
    """`CHUNKS` as in serving, or the `WHOLE` utterance at once."""
    kernels: str = TORCH
    """`TORCH`, as the server runs unless told otherwise, or `FUSED`."""

    def __str__(self) -> str:
        parts = [f"{self.implementation} {self.decoder}"]
        parts += [f"K={self.beam}"] if self.beam else []
        parts += ["unprojected"] if self.projections == EACH_TIME else []
        parts += [FUSED] if self.kernels == FUSED else []
        parts += [self.driver] if self.driver != "eager" else []
        parts += ["whole"] if self.span == WHOLE else []
        return ", ".join(parts)


class Absence(NamedTuple):
    """A line that there is not."""

    entry: Entry
    reason: str
    is_failure: bool = False
    """True if it broke down, and was not merely impossible here."""


class Chunk(NamedTuple):
    """Encoder output of one step of B streams, on the device."""

    frames: torch.Tensor
    """[B, T, D] float32"""
    lengths: torch.Tensor
    """[B] int64, T"""
    is_end: torch.Tensor
    """[B] bool"""


def cut(encoded: torch.Tensor, chunk_encoder_frames: int) -> list[Chunk]:
    """Whole streams [B, T, D] -> chunks in memory of their own, the last one maybe shorter."""
    pieces = encoded.split(chunk_encoder_frames, dim=1)
    batch, device = len(encoded), encoded.device
    return [
        Chunk(
            piece.contiguous(),
            torch.full((batch,), piece.shape[1], device=device),
            torch.full((batch,), number == len(pieces) - 1, device=device),
        )
        for number, piece in enumerate(pieces)
    ]


class Contestant(ABC):
    """One decoder ready to run."""

    def __init__(self, entry: Entry):
        self.entry = entry

    @abstractmethod
    def decode(self, chunks: list[Chunk]) -> Any:
        """Decodes B streams from their start to their end; what is timed. All that was found is on the host after."""

    @abstractmethod
    def labels(self, decoded: Any) -> list[list[int]]:
        """What `decode` found, for each stream; not timed."""
