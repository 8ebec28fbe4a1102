"""A server without a network, which keeps the contract of the Triton model `asr`."""

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock_client.replies import parse_results
from penstock_common.errors import StreamId
from penstock_common.results import Result

WORD_SAMPLES = 800
WORD_MS = 50


Stream = tuple[str, int]
"""A stream of rows: the client and its number there."""


class ReceivedRequest(NamedTuple):
    stream_id: StreamId
    samples: np.ndarray
    is_start: bool
    is_end: bool
    parameters: dict[str, Any]
    """Without the parameters of the sequence."""


class RejectionError(Exception):
    """An error in place of outputs; `status` is the HTTP one."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


SERVER_PARAMETERS = {
    "version": "1.2.3", "model": "fake", "architecture": "RNN-T, CTC", "context": "70,6", "chunk_ms": "560",
    "sample_rate_hz": "16000", "languages": "", "decoders": "greedy,alsd", "max_streams": "8", "max_request_s": "30",
    "idle_s": "30", "max_beam_size": "4", "max_boosted_phrases": "2000", "has_language_model": "false",
    "has_internal_language_model": "true",
}  # fmt: skip
"""Parameters of the served model, with more than this version knows."""


class FakeRecognizer:
    """Recognizes one word per 50 ms of a stream, complete once the next begins or the stream ends."""

    def __init__(self, max_streams: int = 8):
        self.max_streams = max_streams
        self.requests: list[ReceivedRequest] = []
        self.received: dict[StreamId, int] = {}
        """Samples received so far, for each live stream."""
        self.server_parameters = dict(SERVER_PARAMETERS)
        self.n_best: dict[StreamId, int] = {}
        self.segments: dict[StreamId, Segment] = {}
        """The current segment of each live stream."""
        self.before_answer: Callable[[ReceivedRequest], None] = lambda request: None
        self._lock = threading.Lock()

    def answer(self, request: ReceivedRequest) -> dict[str, np.ndarray]:
        with self._lock:
            self.requests.append(request)
        self.before_answer(request)
        with self._lock:
            return self._answer(request)

    def _answer(self, request: ReceivedRequest) -> dict[str, np.ndarray]:
        stream_id = request.stream_id
        if request.is_start:
            if stream_id not in self.received and len(self.received) >= self.max_streams:
                message = f"stream {stream_id!r} rejected: all {self.max_streams} slots are taken"
                raise RejectionError(f"in ensemble 'asr', STREAM_LIMIT: {message}", 503)
            if request.parameters.get("lm_weight"):
                raise RejectionError(
                    f"in ensemble 'asr', OPTION_INVALID: stream {stream_id!r}: lm_weight is 2.5, but there is no model"
                )
            self.received[stream_id] = 0
            self.n_best[stream_id] = request.parameters.get("n_best", 0)
            self.segments[stream_id] = Segment()
        if stream_id not in self.received:
            raise RejectionError(f"in ensemble 'asr', STREAM_NOT_OPEN: stream {stream_id!r} is not open: it expired")
        before = self.received[stream_id]
        if request.is_end:
            del self.received[stream_id]
        if not np.isfinite(request.samples).all():
            raise RejectionError(
                f"in ensemble 'asr', AUDIO_INVALID: stream {stream_id!r}: 1 of 9 samples are not finite"
            )
        after = before + request.samples.size
        if not request.is_end:
            self.received[stream_id] = after
        segment = self.segments[stream_id]
        is_final = request.is_end or request.parameters.get("finalize") is True
        if is_final:
            self.segments[stream_id] = Segment(segment.index + 1, after)
        return outputs(before, after, is_final, self.n_best[stream_id], segment)


def word(index: int) -> str:
    return ("wörd", "λέξη", "語", "🙂")[index % 4] + str(index)


def confidence(index: int) -> float:
    return 1 - index % 4 / 8


class Segment(NamedTuple):
    """A segment of a stream: its index and its first sample."""

    index: int = 3
    start: int = 0
    """Samples of the stream before this segment."""


FIRST_SEGMENT = Segment()


def outputs(
    before: int, after: int, is_final: bool, n_best: int = 0, segment: Segment = FIRST_SEGMENT
) -> dict[str, np.ndarray]:
    """The outputs of the model after `after` samples of which `before` were answered before, each [1, k].

    A segment's first word begins with its first sample.
    """

    def begun(samples: int) -> int:
        return -(-(samples - segment.start) // WORD_SAMPLES)

    new = range(begun(before), begun(after))
    complete = range(max(0, begun(before) - 1), max(0, begun(after) - (not is_final)))
    alternatives = range(n_best if is_final else 0)
    text = " ".join(word(index) for index in range(begun(after)))
    start_ms = 1000 * segment.start // 16_000
    return {
        "SEGMENT": np.array([[segment.index]], np.int32),
        "TEXT": texts([text]),
        "IS_FINAL": np.array([[is_final]]),
        "AUDIO_PROCESSED": np.array([[after / 16000]], np.float32),
        "LANGUAGE": texts(["en-US" if begun(after) else ""]),
        "WORDS": texts([word(index) for index in complete]),
        "WORD_START_MS": np.array([[start_ms + WORD_MS * index for index in complete]], np.int32),
        "WORD_END_MS": np.array([[start_ms + WORD_MS * (index + 1) for index in complete]], np.int32),
        "WORD_CONFIDENCE": np.array([[confidence(index) for index in complete]], np.float32),
        "ALTERNATIVES": texts([f"{text} ({rank})" for rank in alternatives]),
        "ALTERNATIVE_SCORES": np.array([[-0.5 - rank for rank in alternatives]], np.float32),
        "ALTERNATIVE_WORDS": texts(
            [json.dumps([[text, start_ms, start_ms + 80, 0.25 * rank]]) for rank in alternatives]
        ),
        "TOKENS": np.array([list(new)], np.int32),
        "TIMESTAMPS": np.array([[start_ms // 25 + 2 * index for index in new]], np.int32),
    }


def parse_reply(stream_id: StreamId, as_numpy: Callable[[str], np.ndarray | None]) -> list[Result]:
    """The results that outputs [1, k] hold. Raises ProtocolError."""

    def values(name: str) -> list[Any] | None:
        output = as_numpy(name)
        return None if output is None else output.ravel().tolist()

    return parse_results(stream_id, values)


def expected(samples: np.ndarray) -> Result:
    """The reply to all samples at once."""
    return parse_reply("s", outputs(0, samples.size, True).get)[0]


def text_of(samples: int) -> str:
    """The text of this number of samples in one request."""
    return expected(np.zeros(samples)).text


SCORES = ("WORD_CONFIDENCE", "ALTERNATIVES", "ALTERNATIVE_SCORES", "ALTERNATIVE_WORDS", "LANGUAGE")
"""Outputs that not every server sends."""


def texts(values: list[str]) -> np.ndarray:
    return np.array([[value.encode() for value in values]], np.object_).reshape(1, -1)
