"""Recordings with pauses between them, for streams whose segments end in pauses."""

import json
import random
from functools import cache

import numpy as np

from loadtest.options import DEFAULT_RECORDINGS
from penstock.frontend.audio_file import read_audio

RATE_HZ = 16_000
PAUSE_S = 2.0
"""Behind each recording: longer than a usual pause that ends a segment, and a chunk."""


@cache
def _parts() -> list[np.ndarray]:
    lines = DEFAULT_RECORDINGS.read_text(encoding="utf-8").splitlines()
    paths = [DEFAULT_RECORDINGS.parent / json.loads(line)["audio_filepath"] for line in lines]
    pause = np.zeros(round(PAUSE_S * RATE_HZ), np.int16)
    return [np.concatenate([_as_16_bits(read_audio(path, RATE_HZ)), pause]) for path in paths]


def _as_16_bits(samples: np.ndarray) -> np.ndarray:
    return np.round(samples * 32768).clip(-32768, 32767).astype(np.int16)


def joined_recordings(seed: int, min_seconds: float) -> np.ndarray:
    """Int16 samples [n] at 16 kHz: the repository's recordings in a random order, again and again, of at least this
    duration. Each has a pause of 2 s behind it. Equal for equal seeds."""
    order, found = random.Random(seed), []
    while sum(map(len, found)) < min_seconds * RATE_HZ:
        found += order.sample(_parts(), len(_parts()))
    return np.concatenate(found)
