"""Resampling of a stream with soxr: the same samples for any sizes of its parts."""

import numpy as np
import numpy.typing as npt
import soxr

Samples = npt.NDArray[np.float32]
MIN_RATE_HZ = 1000
"""A header can state 1 Hz, which would make each of its samples 16,000."""
_NO_SAMPLES = np.zeros(0, np.float32)


class Resampler:
    """Resamples one stream. It keeps up to 36 ms back, so flush it before a segment or the stream ends."""

    def __init__(self, input_rate_hz: int, output_rate_hz: int):
        """ValueError for an input rate below `MIN_RATE_HZ`."""
        if input_rate_hz < MIN_RATE_HZ:
            raise ValueError(f"has a sample rate of {input_rate_hz} Hz; accepted: {MIN_RATE_HZ} or more")
        self._rates_hz = (input_rate_hz, output_rate_hz)
        self._stream = self._begin()

    def push(self, samples: Samples) -> Samples:
        """The next samples [n] at the input rate; returns those [m] that are complete at the output rate."""
        if self._stream is None:
            return samples
        resampled: Samples = self._stream.resample_chunk(samples)
        return resampled

    def flush(self) -> Samples:
        """The rest of what was pushed; the next samples begin a new stream."""
        if self._stream is None:
            return _NO_SAMPLES
        rest: Samples = self._stream.resample_chunk(_NO_SAMPLES, last=True)
        self._stream = self._begin()
        return rest

    def _begin(self) -> soxr.ResampleStream | None:
        input_rate_hz, output_rate_hz = self._rates_hz
        if input_rate_hz == output_rate_hz:
            return None
        return soxr.ResampleStream(input_rate_hz, output_rate_hz, 1, "float32", "HQ")
