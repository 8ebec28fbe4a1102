"""Where the segments of a stream end: after so much audio, and where its speaker says so. Knows no network."""

import numpy as np
import numpy.typing as npt

from penstock_client.protocol import SAMPLE_RATE_HZ
from penstock_client.stream import Stream


class SegmentEnds:
    """Of one stream. `every_s` is the length of a segment in seconds; None for as long as nobody ends it."""

    def __init__(self, every_s: float | None = None):
        self._every_samples = None if every_s is None else max(1, round(every_s * SAMPLE_RATE_HZ))
        self._samples = 0
        self._ends_now = False

    def end_now(self) -> None:
        """The segment ends behind the audio that is sent next."""
        self._ends_now = True

    def send(self, stream: Stream, samples: npt.NDArray[np.float32], is_last: bool = False) -> None:
        """Sends samples [n], `finalize` where a segment ends in them, `finish` with the last ones.

        A segment that would end with the audio ends with the stream, so that no empty one follows.
        """
        *ended, rest = self._cut(samples)
        if is_last and ended and not rest.size:
            rest = ended.pop()
        for part in ended:
            stream.finalize(part)
        if is_last:
            stream.finish(rest)
        elif rest.size:
            stream.send(rest)

    def _cut(self, samples: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        """All parts but the last end a segment; the last one, maybe empty, belongs to the segment that goes on."""
        parts = []
        while self._every_samples is not None and self._samples + samples.size >= self._every_samples:
            border = self._every_samples - self._samples
            parts.append(samples[:border])
            samples, self._samples = samples[border:], 0
        if self._ends_now:
            self._ends_now = False
            if samples.size or not parts:  # else it has just ended
                parts.append(samples)
                samples, self._samples = samples[samples.size :], 0
        self._samples += samples.size
        return [*parts, samples]
