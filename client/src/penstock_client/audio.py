"""Reads audio files, with soundfile and soxr."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from penstock_client.errors import AudioError, one_line
from penstock_client.protocol import SAMPLE_RATE_HZ


def read_audio(path: str | Path) -> npt.NDArray[np.float32]:
    """Mono samples [n] in -1 .. 1 at 16 kHz; other rates are resampled, channels are averaged.

    Reads wav, flac, ogg, opus, mp3, au and the other formats of libsndfile. Raises AudioError for a file that is
    missing, empty, not audio, or has samples that are not finite.
    """
    samples, rate_hz = _decode(path)  # [n, channels]
    if not samples.size:
        raise AudioError(path, "has no audio")
    mono = samples.mean(axis=1)
    if not np.isfinite(mono).all():
        raise AudioError(path, "some samples are not finite numbers")
    if rate_hz != SAMPLE_RATE_HZ:
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ)
    return np.ascontiguousarray(mono, np.float32)


def _decode(path: str | Path) -> tuple[npt.NDArray[np.float32], int]:
    try:
        with Path(path).open("rb") as file:
            samples, rate_hz = soundfile.read(file, dtype="float32", always_2d=True)
            return samples, rate_hz
    except OSError as error:
        raise AudioError(path, (error.strerror or str(error)).lower()) from error
    except (RuntimeError, TypeError, ValueError) as error:  # soundfile's errors are RuntimeErrors
        reason = getattr(error, "error_string", None) or error
        raise AudioError(path, f"not a readable audio file: {one_line(reason)}") from error
