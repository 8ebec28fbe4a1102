"""A recording that is sent in chunks. Knows no network and does not wait."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_client.audio import read_audio
from penstock_client.protocol import SAMPLE_RATE_HZ, as_samples

_LIVE_CHUNK_MS, _FILE_CHUNK_MS = 100.0, 1000.0
"""Of a recording as fast as it goes each piece waits for the answer to the one before."""


def chosen_chunk_ms(chunk_ms: float | None, is_live: bool) -> float:
    """What is sent at once, where nothing else is asked for."""
    if chunk_ms is not None:
        return chunk_ms
    return _LIVE_CHUNK_MS if is_live else _FILE_CHUNK_MS


class Chunk(NamedTuple):
    """What is sent at once."""

    samples: npt.NDArray[np.float32]
    """[n]"""
    end_samples: int
    """Samples of the recording up to the end of this chunk."""
    is_last: bool


class Recording:
    """All samples of a file, or mono samples [n] at 16 kHz, cut into chunks of `chunk_ms`.

    Raises AudioError for an unusable file, and ValueError for unsuitable arguments.
    """

    def __init__(self, audio: str | Path | npt.ArrayLike, chunk_ms: float):
        self._chunk_samples = round(chunk_ms * SAMPLE_RATE_HZ / 1000)
        if self._chunk_samples < 1:
            raise ValueError(f"chunk_ms is {chunk_ms!r}, expected at least one sample")
        self.samples = read_audio(audio) if isinstance(audio, str | Path) else as_samples(audio)

    def __iter__(self) -> Iterator[Chunk]:
        """At least one chunk, the last one maybe shorter."""
        size = self.samples.size
        for start in range(0, max(1, size), self._chunk_samples):
            end = min(start + self._chunk_samples, size)
            yield Chunk(self.samples[start:end], end, end == size)
