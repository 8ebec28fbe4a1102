"""From probabilities to who spoke when: turns of speakers, the speaker of a word, and RTTM."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

SPEAKS = 0.5
"""Above this probability a speaker speaks."""
_ROUNDING = 1e-6
"""Added to a number of frames: 1.15 s / 0.01 s is less than 115."""


class Turn(NamedTuple):
    """A speaker speaks without a break; turns of several may overlap."""

    speaker: int
    """From 1, in the order in which they first speak."""
    start_s: float
    end_s: float


def turns(probabilities: torch.Tensor, frame_s: float, start_s: float = 0.0) -> list[Turn]:
    """The turns in probabilities [N, K] of frames of `frame_s`, by start and then by speaker.

    start_s: time of the first frame.
    """
    speaks = torch.nn.functional.pad((probabilities > SPEAKS).int(), (0, 0, 1, 1))
    changes = speaks.diff(dim=0).t()  # [K, N + 1]: 1 where a turn begins, -1 where it has ended
    found = []
    for speaker, row in enumerate(changes, start=1):
        begins, ends = ((row == change).nonzero()[:, 0].tolist() for change in (1, -1))
        found += [
            Turn(speaker, round(start_s + begin * frame_s, 3), round(start_s + end * frame_s, 3))
            for begin, end in zip(begins, ends, strict=True)
        ]
    return sorted(found, key=lambda turn: (turn.start_s, turn.speaker))


def speakers_of(
    times_ms: Iterable[tuple[int, int]], probabilities: np.ndarray, frame_ms: float, start_ms: float = 0.0
) -> list[int]:
    """The speaker of each word, from 1: the one with the largest mean probability [N, K] from its start to its end.

    start_ms: time of the first frame. Of a word after the last frame that frame counts.
    """
    found = []
    for begin_ms, end_ms in times_ms:
        first = min(max(int((begin_ms - start_ms) / frame_ms + _ROUNDING), 0), max(len(probabilities) - 1, 0))
        last = max(first + 1, round((end_ms - start_ms) / frame_ms))
        part = probabilities[first:last]
        found.append(int(part.mean(axis=0).argmax()) + 1 if len(part) else 1)
    return found


def rttm(name: str, spoken: Sequence[Turn]) -> str:
    """NIST's Rich Transcription Time Marked: a line for each turn. A name is one field: blanks become `_`."""
    field = "_".join(name.split())
    return "".join(
        f"SPEAKER {field} 1 {turn.start_s:.3f} {turn.end_s - turn.start_s:.3f} <NA> <NA> speaker_{turn.speaker} "
        "<NA> <NA>\n"
        for turn in spoken
    )
