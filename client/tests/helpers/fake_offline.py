"""The model `asr` of a server with an offline model: results only after a stream's end, by polling."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from client.tests.helpers.fakes import FakeRecognizer, ReceivedRequest, RejectionError, Segment, outputs

STEP, SEGMENT = 4000, 8000
"""Samples that a request recognizes, and that a segment has."""
_STREAMING = ("context", "chunk_ms", "first_chunk_samples", "chunk_samples")


class _Work(NamedTuple):
    """A stream whose end was received."""

    samples: int
    done: int = 0
    segment: int = 0


class OfflineRecognizer(FakeRecognizer):
    """Recognizes one word per 50 ms, 250 ms per request; every half second a segment ends."""

    def __init__(self, max_streams: int = 8):
        super().__init__(max_streams)
        named = {name: value for name, value in self.server_parameters.items() if name not in _STREAMING}
        self.server_parameters = {**named, "windows": "file,long"}
        self.work: dict[object, _Work] = {}
        self.step_of: Callable[[object], int] = lambda name: STEP
        """Samples that a request of this stream recognizes."""
        self.cancelled: list[object] = []
        """Streams whose work was dropped by a second end."""

    def _answer(self, request: ReceivedRequest) -> dict[str, np.ndarray]:
        name = request.stream_id
        if request.is_start or name not in self.work:
            if request.is_end and not request.is_start and name not in self.received:
                super()._answer(request)  # rejects it
            samples = 0 if request.is_start else self.received.get(name, 0)
            self.work.pop(name, None)
            super()._answer(request._replace(is_end=False))
            if not request.is_end:
                return {**outputs(0, 0, False, segment=Segment(0)), **_processed(0)}
            self.work[name] = _Work(samples + request.samples.size)
        elif request.is_end:
            self.cancelled.append(name)
            self._forget(name)
            return {**outputs(0, 0, False, segment=Segment(0)), **_processed(0)}
        elif request.samples.size:
            raise RejectionError(f"in ensemble 'asr', REQUEST_INVALID: stream {name!r} has ended")
        return self._step(name)

    def _step(self, name: object) -> dict[str, np.ndarray]:
        work = self.work[name]
        done = min(work.done + self.step_of(name), work.samples)
        is_last = done == work.samples
        is_final = is_last or (done > work.done and done % SEGMENT == 0)
        segment = Segment(work.segment, work.segment * SEGMENT)
        found = outputs(max(work.done, segment.start), done, is_final, self.n_best[name], segment)
        self.work[name] = _Work(work.samples, done, work.segment + is_final)
        if is_last:
            self._forget(name)
        return found

    def _forget(self, name: object) -> None:
        del self.work[name], self.received[name]


def _processed(seconds: float) -> dict[str, np.ndarray]:
    return {"AUDIO_PROCESSED": np.array([[seconds]], np.float32)}


def whole(samples: int) -> list[tuple[str, int]]:
    """Text and number of tokens of each segment."""
    texts = []
    for number, start in enumerate(range(0, max(1, samples), SEGMENT)):
        end = min(start + SEGMENT, samples)
        found = outputs(start, end, True, segment=Segment(number, start))
        texts.append((found["TEXT"].item().decode(), found["TOKENS"].size))
    return texts
