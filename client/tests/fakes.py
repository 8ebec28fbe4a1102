"""A server without a network: the contract of the Triton model `asr`, kept in thirty lines, and wires to put it on."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock_client.errors import ClientError, StreamId
from penstock_client.mailbox import Mailbox
from penstock_client.protocol import Piece, Result, parse_reply, refusal

WORD_SAMPLES = 800
WORD_MS = 50


class Request(NamedTuple):
    stream_id: StreamId
    samples: np.ndarray
    is_start: bool
    is_end: bool
    parameters: dict[str, Any]
    """All but the sequence's."""


class RefusalError(Exception):
    """An error in place of outputs; `status` is the HTTP one."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class FakeRecognizer:
    """Hears one word in each 50 ms of a stream, complete once the next begins or the stream ends."""

    def __init__(self, max_streams: int = 8):
        self.max_streams = max_streams
        self.requests: list[Request] = []
        self.heard: dict[StreamId, int] = {}
        """Samples so far of each live stream."""
        self.n_best: dict[StreamId, int] = {}
        self.segments: dict[StreamId, Segment] = {}
        """Of each live stream the current one."""
        self.before_answer: Callable[[Request], None] = lambda request: None
        self._lock = threading.Lock()

    def answer(self, request: Request) -> dict[str, np.ndarray]:
        with self._lock:
            self.requests.append(request)
        self.before_answer(request)
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> dict[str, np.ndarray]:
        stream_id = request.stream_id
        if request.is_start:
            if stream_id not in self.heard and len(self.heard) >= self.max_streams:
                message = f"in ensemble 'asr', stream {stream_id!r} refused: all {self.max_streams} slots are taken"
                raise RefusalError(message, 503)
            if request.parameters.get("lm_weight"):
                raise RefusalError(f"in ensemble 'asr', stream {stream_id!r}: lm_weight is 2.5, but there is no model")
            self.heard[stream_id] = 0
            self.n_best[stream_id] = request.parameters.get("n_best", 0)
            self.segments[stream_id] = Segment()
        if stream_id not in self.heard:
            raise RefusalError(f"in ensemble 'asr', stream {stream_id!r} is not open: it was expired")
        before = self.heard[stream_id]
        if request.is_end:
            del self.heard[stream_id]
        if not np.isfinite(request.samples).all():
            raise RefusalError(f"in ensemble 'asr', stream {stream_id!r}: 1 of 9 samples are not finite")
        after = before + request.samples.size
        if not request.is_end:
            self.heard[stream_id] = after
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
    """A stretch of a stream that is final as a whole."""

    index: int = 3
    start: int = 0
    """Samples of the stream before it."""


FIRST_SEGMENT = Segment()


def outputs(
    before: int, after: int, is_final: bool, n_best: int = 0, segment: Segment = FIRST_SEGMENT
) -> dict[str, np.ndarray]:
    """What the model answers after `after` samples of which `before` were answered before, each [1, k].

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


def expected(samples: np.ndarray) -> Result:
    """The reply to all samples at once."""
    return parse_reply("s", outputs(0, samples.size, True).get)


SCORES = ("WORD_CONFIDENCE", "ALTERNATIVES", "ALTERNATIVE_SCORES", "ALTERNATIVE_WORDS")
"""Outputs that not every server has."""


def texts(values: list[str]) -> np.ndarray:
    return np.array([[value.encode() for value in values]], np.object_).reshape(1, -1)


class FakeConnection:
    """The transport seam in memory: replies are there as soon as a piece is sent."""

    def __init__(self, recognizer: FakeRecognizer):
        self.recognizer = recognizer
        self.transports: list[FakeTransport] = []
        self.is_closed = False

    def open_transport(self, stream_id: StreamId, timeout_s: float) -> "FakeTransport":
        self.transports.append(FakeTransport(self.recognizer, stream_id, timeout_s))
        return self.transports[-1]

    def close(self) -> None:
        self.is_closed = True


class FakeTransport:
    def __init__(self, recognizer: FakeRecognizer, stream_id: StreamId, timeout_s: float):
        self._recognizer = recognizer
        self._stream_id = stream_id
        self._mailbox = Mailbox(stream_id, "memory", timeout_s)
        self._mailbox.note_connection()
        self.sent_s: list[float] = []
        self.closes = 0

    @property
    def is_complete(self) -> bool:
        return self._mailbox.is_complete

    def send(self, piece: Piece) -> None:
        self._mailbox.announce(piece)
        self._mailbox.next_piece()
        self.sent_s.append(time.monotonic())
        samples = np.frombuffer(piece.audio, "<f4")
        try:
            request = Request(self._stream_id, samples, piece.is_first, piece.is_last, dict(piece.parameters))
            reply = self._recognizer.answer(request)
            self._mailbox.deliver(parse_reply(self._stream_id, reply.get))
        except RefusalError as error:
            self._mailbox.fail(refusal(self._stream_id, str(error)))
        except ClientError as error:
            self._mailbox.fail(error)

    def receive(self, wait_s: float | None) -> Result | None:
        return self._mailbox.take(wait_s)

    def cancel(self) -> None:
        self._mailbox.leave()

    def close(self) -> None:
        self.closes += 1
        self._mailbox.leave()
