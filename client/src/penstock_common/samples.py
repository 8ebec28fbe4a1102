"""Mono audio at 16 kHz as an array."""

import numpy as np
import numpy.typing as npt

SAMPLE_RATE_HZ = 16_000


def as_samples(samples: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Mono audio [n] as float32: floats are unchanged (-1 .. 1), int16 is PCM.

    Raises ValueError for another shape or type.
    """
    array = np.asarray(samples)
    if array.ndim != 1:
        raise ValueError(f"samples have shape {array.shape}, expected mono audio of shape [n]")
    if array.dtype == np.int16:
        return array.astype("<f4") / np.float32(32768)
    if array.size and array.dtype.kind != "f":
        raise ValueError(f"samples have type {array.dtype}, expected floats in -1 .. 1 or int16")
    return array.astype("<f4", copy=False)
