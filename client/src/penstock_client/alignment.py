"""Collects a stream's samples up to the next border of the model's chunks. No I/O.

A server can begin a chunk only with its last sample. So a request that completes no chunk is work for
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock_common.samples import as_samples

Samples = npt.NDArray[Any]
"""[n] float32 in -1 .. 1, or int16 where the protocol carries it."""


@dataclass(frozen=True, slots=True)
class ChunkGeometry:
    """Ends of a stream's chunks, in samples from its first one."""

    first_chunk_samples: int
    """Samples that complete the first chunk of a stream."""
    chunk_samples: int
    """Samples of each further chunk."""
    chunk_frames: int = 0
    """Encoder frames of a chunk; 0 where they are not known."""

    def border(self, samples: int) -> int:
        """The end of the last chunk that `samples` samples of a stream complete; 0 if they complete none."""
        if samples < self.first_chunk_samples:
            return 0
        return samples - (samples - self.first_chunk_samples) % self.chunk_samples

    def chunks(self, samples: int) -> int:
        """Counts the chunks that cover `samples` samples."""
        return -(-samples // self.chunk_samples)


def read_geometry(parameters: Mapping[str, str]) -> ChunkGeometry | None:
    """Reads the parameters of a server's model; None where an earlier server does not publish them, or no sizes."""
    try:
        first, chunk = int(parameters["first_chunk_samples"]), int(parameters["chunk_samples"])
        frames = int(parameters.get("context", "").rpartition(",")[2] or -1) + 1
    except (KeyError, ValueError):
        return None
    return ChunkGeometry(first, chunk, frames) if first > 0 and chunk > 0 else None


class ChunkAligner:
    """The samples of one stream that complete no chunk yet. Without a geometry it keeps nothing."""

    def __init__(self, geometry: ChunkGeometry | None = None):
        self.geometry = geometry
        """May change: with that of another server the stream goes on."""
        self._held: list[Samples] = []
        self.held_samples = 0
        """Samples that were added and not returned yet."""
        self._sent_samples = 0

    def add(self, samples: Samples) -> Samples | None:
        """Adds samples [n], which the caller does not change.

        Returns those that can be sent, up to the last border, or None before the next one.
        """
        total = self._sent_samples + self.held_samples + len(samples)
        border = total if self.geometry is None else self.geometry.border(total)
        if border <= self._sent_samples:
            self._hold(samples)
            return None
        whole = self._release(samples)
        self._sent_samples = border
        if kept := total - border:
            self._hold(whole[-kept:])
            whole = whole[:-kept]
        return whole

    def flush(self, samples: Samples) -> Samples:
        """Adds the last samples [n] of a segment and returns all that were held. The borders stay where they are."""
        self._sent_samples += self.held_samples + len(samples)
        return self._release(samples)

    def _hold(self, samples: Samples) -> None:
        self._held.append(samples)
        self.held_samples += len(samples)

    def _release(self, samples: Samples) -> Samples:
        held, self._held, self.held_samples = self._held, [], 0
        return join_samples([*held, samples]) if held else samples


def join_samples(parts: Sequence[Samples]) -> Samples:
    """The parts one after another: int16 where all of them are, else float32. Empty parts have no type."""
    parts = [part for part in parts if len(part)]
    if any(part.dtype != parts[0].dtype for part in parts):
        parts = [as_samples(part) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, "<f4")
