"""When a piece of recorded audio would have been complete, had it been spoken now. Never sleeps itself."""

import time
from collections.abc import Callable

from penstock_client.protocol import SAMPLE_RATE_HZ


class Pacer:
    """Real-time pace by absolute deadlines: a late piece does not delay the ones after it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._start_s = clock()

    def remaining_s(self, samples: int) -> float:
        """Seconds until the first `samples` samples are complete, counted from the start; 0 if they are."""
        return max(0.0, self._start_s + samples / SAMPLE_RATE_HZ - self._clock())
