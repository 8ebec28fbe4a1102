"""Joins utterances into longer recordings with pauses, as a test of endpointing."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from penstock.errors import ManifestError
from penstock.evaluation.manifest import Utterance
from penstock.frontend.audio_file import read_audio


def join_utterances(
    utterances: Sequence[Utterance], count: int, pause_s: float, sample_rate_hz: int, folder: Path
) -> list[Utterance]:
    """Joins `count` successive utterances of a manifest at a time, the last ones of each fewer; writes WAV files.

    pause_s: silence between two of them. Raises AudioError, and ManifestError for languages that differ in a group.
    """
    joined: list[Utterance] = []
    for _, of_manifest in groupby(utterances, key=lambda utterance: utterance.manifest):
        rows = list(of_manifest)
        for first in range(0, len(rows), count):
            path = folder / f"{len(joined)}.wav"
            joined.append(_joined(rows[first : first + count], pause_s, sample_rate_hz, path))
    return joined


def _joined(group: Sequence[Utterance], pause_s: float, sample_rate_hz: int, path: Path) -> Utterance:
    import soundfile

    first = group[0]
    if len({utterance.language for utterance in group}) > 1:
        raise ManifestError(f"{first.manifest}:{first.line}: lang: differs from those of the next {len(group) - 1}")
    pause = np.zeros(round(pause_s * sample_rate_hz), np.float32)
    parts = [part for one in group for part in (pause, read_audio(one.audio, sample_rate_hz))][1:]
    samples = np.concatenate(parts)
    soundfile.write(path, samples, sample_rate_hz, subtype="FLOAT")
    return replace(
        first,
        audio=path,
        audio_s=len(samples) / sample_rate_hz,
        reference=" ".join(filter(None, (one.reference for one in group))),
        speaker=first.speaker if len({one.speaker for one in group}) == 1 else None,
        boosted_phrases=tuple(dict.fromkeys(phrase for one in group for phrase in one.boosted_phrases)),
        stated_s=None,
    )
