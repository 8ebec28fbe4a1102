"""The recordings that are streamed, read once by each process."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.evaluation.manifest import read_manifest
from penstock_client import read_audio


@lru_cache(maxsize=1)
def read_recordings(manifest: Path) -> list[np.ndarray]:
    """Samples [n] of each (mono, 16 kHz), so that nothing but sending is left to do; the last manifest's are kept.

    Raises PenstockError and ClientError.
    """
    return [read_audio(utterance.audio) for utterance in read_manifest(manifest)]
