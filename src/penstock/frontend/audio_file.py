"""Reads audio files with soundfile and resamples them with soxr."""

from pathlib import Path

import numpy as np
import soundfile
import soxr

from penstock.errors import AudioError


def read_audio(path: str | Path, sample_rate_hz: int) -> np.ndarray:
    """Returns mono samples [n] float32 in -1 .. 1 at `sample_rate_hz`; channels are averaged.

    Reads wav, flac, ogg and every other format of libsndfile. Raises AudioError with the name of an unusable file.
    """
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, TypeError) as error:  # soundfile raises RuntimeErrors, and TypeError for *.raw
        reason = "no such file" if not Path(path).exists() else f"not a readable audio file ({error})"
        raise AudioError(f"{path}: {reason}") from error
    mono = samples.mean(axis=1)
    if rate != sample_rate_hz:
        mono = soxr.resample(mono, rate, sample_rate_hz)
    if not np.isfinite(mono).all():
        raise AudioError(f"{path}: some samples are not finite numbers")
    return np.ascontiguousarray(mono, np.float32)
