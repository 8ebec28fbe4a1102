"""Results of a stream in the form of `asr`: everything that is new, or the text as it is. No I/O."""

from collections.abc import Sequence
from dataclasses import replace

from penstock_client import Answer, Result
from penstock_client.alignment import ChunkGeometry, read_geometry
from penstock_gateway.stream.live_stream import ModelGroup

_HOPS_PER_S = 100
"""Mel frames per second of all models."""


class RequestResults:
    """Collects the answers to the rows of one stream, and gives out the results of a request."""

    def __init__(self, group: ModelGroup):
        self._rate_hz = group.sample_rate_hz
        self._geometry: ChunkGeometry | None = read_geometry(group.parameters)
        self._new: list[Result] = []
        self._now = Result(0, "", False, 0.0, (), (), ())
        """The answer to a request without a new result."""

    def add(self, answer: Answer) -> None:
        """The answer to the next row."""
        for result in answer.results:
            self._add(result)
        if answer.results:
            return
        covered_s = self._covered_s(answer.end_samples)
        if covered_s is not None and covered_s > self._now.audio_processed_s:
            self._now = replace(self._now, audio_processed_s=covered_s)
            if self._new:  # of the same request, which has one entry for the current segment
                self._add(self._now)

    @property
    def has_changes(self) -> bool:
        """True while results are collected that `take` has not given out."""
        return bool(self._new)

    def cancelled(self, samples: int) -> Sequence[Result]:
        """The answer to a request that drops the work which is left of a stream of this length."""
        return [replace(self._now, text="", is_final=True, audio_processed_s=samples / self._rate_hz)]

    def take(self) -> Sequence[Result]:
        """The results of a request whose rows are all answered, or of a poll."""
        new, self._new = self._new, []
        return new or [self._now]

    def _add(self, result: Result) -> None:
        if self._new and not self._new[-1].is_final:
            result = _joined(self._new.pop(), result)
        self._new.append(result)
        if result.is_final:
            self._now = Result(result.segment + 1, "", False, result.audio_processed_s, (), (), ())
        else:
            self._now = replace(result, new_words=(), new_tokens=(), new_timestamps=())

    def _covered_s(self, end_samples: int) -> float | None:
        """Audio of the stream up to the last whole hop of its chunks; None where their borders are not known."""
        if self._geometry is None:
            return None
        border = self._geometry.border(end_samples)
        window_rest = self._geometry.first_chunk_samples % (self._rate_hz // _HOPS_PER_S)
        return max(0, border - window_rest) / self._rate_hz


def _joined(earlier: Result, later: Result) -> Result:
    """One result for two of the same segment."""
    return replace(
        later,
        new_words=earlier.new_words + later.new_words,
        new_tokens=earlier.new_tokens + later.new_tokens,
        new_timestamps=earlier.new_timestamps + later.new_timestamps,
    )
