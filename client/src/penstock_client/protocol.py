"""Limits of requests and replies, and how the results of one stream follow. No network, no threads."""

from collections.abc import Sequence

from penstock_common.results import Result
from penstock_common.samples import SAMPLE_RATE_HZ

MODEL_NAME, SPEAKERS_MODEL_NAME = "asr_batch", "asr_batch_speakers"
"""The second one for streams with speakers."""
NOT_A_SERVER = "this is no Penstock server, but perhaps its gateway"
"""Reason where what answers does not know KServe v2."""
MAX_REQUEST_SAMPLES = 30 * SAMPLE_RATE_HZ
"""The server's limit for one request."""
MAX_REPLY_BYTES = 32 << 20
"""A larger reply is not read. N-best texts are what is long: a word takes some 70 bytes, most of them its times and
confidence as JSON. So this holds 8 alternatives of a segment of 4 h (43,000 words, 24 MB), 32 of one of an hour, or 4
for each of the 1,024 rows of a batch that all end a segment of 30 s."""

_ROUNDING, _PADDING_S = 1e-5, 1.0
"""AUDIO_PROCESSED may differ from what was sent by the first as a part of it, and exceed it by less than the second."""


def ends_stream(results: Sequence[Result], samples: int) -> bool:
    """True if these are the last results of a stream of `samples` samples, whose end was sent.

    A stream of an offline model has results that end its segments before: they report at most 0.999 of the audio. The
    last one reports all of it, as float32, and of a stream that has moved as a sum of two.
    """
    least_s = (1 - _ROUNDING) * samples / SAMPLE_RATE_HZ
    return bool(results) and results[-1].is_final and results[-1].audio_processed_s >= least_s


class ResultOrder:
    """Whether results of one stream on one server can be: segments follow one another, and cover audio that was sent.

    Else a segment could be taken for one that is told, and its words be lost.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        """The segment of the next result. A stream's first one may have any."""

    def problem(self, results: Sequence[Result], samples: int) -> str | None:
        """Checks the next results of a stream of which the server may have these samples; None: nothing is wrong."""
        for result in results:
            if self._next not in (None, result.segment):
                return f"the server's reply has segment {result.segment}, expected {self._next}"
            if result.audio_processed_s > samples / SAMPLE_RATE_HZ * (1 + _ROUNDING) + _PADDING_S:
                return f"the server's reply covers {result.audio_processed_s:g} s of {samples / SAMPLE_RATE_HZ:g}"
            self._next = result.segment + result.is_final
        return None
