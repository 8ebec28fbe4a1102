"""The recordings that are streamed, with what is said in them: a manifest, read once by each process."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.evaluation.manifest import read_manifest
from penstock_client import read_audio


@dataclass(frozen=True)
class Recordings:
    """In the order of the manifest."""

    samples: list[np.ndarray]
    """[n] each, mono at 16 kHz."""
    references: list[str]
    manifest: Path


@lru_cache(maxsize=1)
def read_recordings(manifest: Path) -> Recordings:
    """Decodes all of them into memory, so that nothing but sending is left to do; the last manifest's are kept.

    Raises PenstockError and ClientError.
    """
    utterances = read_manifest(manifest)
    return Recordings(
        [read_audio(utterance.audio) for utterance in utterances],
        [utterance.reference for utterance in utterances],
        manifest,
    )
