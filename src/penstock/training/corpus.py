"""Utterances for training: log-mel frames, words and where they lie. Knows no model and no augmentation."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True)
class WordSpan:
    """A word and its mel frames [begin, end)."""

    word: str
    begin: int
    end: int


@dataclass(frozen=True)
class Utterance:
    """One recording."""

    mel: np.ndarray
    """[N, F] float32, natural logarithm, not normalised."""
    words: tuple[str, ...]
    speaker: str
    spans: tuple[WordSpan, ...] = ()
    """In order; empty where the words could not be aligned."""


@dataclass(frozen=True)
class Recording:
    """One line of a manifest with its samples."""

    samples: np.ndarray
    """[n] float32 at 16 kHz."""
    words: tuple[str, ...]
    speaker: str
    name: str


def read_manifest(path: Path) -> list[Recording]:
    """Reads a manifest of JSON lines (`audio_filepath` beside the manifest or absolute, `text`, `speaker` optional).

    Raises ValueError naming file and line where one cannot be used.
    """
    recordings = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            recordings.append(_recording(entry, path.parent))
        except (ValueError, KeyError, TypeError, OSError, soundfile.SoundFileError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    return recordings


def _recording(entry: dict, folder: Path) -> Recording:
    name, text = entry["audio_filepath"], entry["text"]
    if not isinstance(text, str):
        raise TypeError(f"text: {text!r}, expected a string")
    samples = read_samples(folder / name)
    if not len(samples):
        raise ValueError(f"{name} holds no audio")
    return Recording(samples, tuple(text.lower().split()), str(entry.get("speaker", name)), name)


def read_samples(path: Path) -> np.ndarray:
    """[n] float32, mono, 16 kHz."""
    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    return mono if rate_hz == SAMPLE_RATE_HZ else soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ)
