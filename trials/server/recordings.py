"""Streams of known audio, and the check of their replies: every final word once, in order, in one stream only.

Each stream has known audio, so that a word of another stream, an extra word and a missing word are all differences.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

from penstock.frontend.audio_file import read_audio
from penstock.recognizer import StreamingRecognizer
from trials.server.raw_stream import BatchedRawStream, RawStream, Reply
from trials.server.running import CONTEXT, RunningServer

SPEECH = Path(__file__).parents[2] / "tests" / "data" / "an4" / "flac"
REQUEST_SAMPLES = 3200
NO_SAMPLES = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Expected:
    """The result of a whole stream of known audio."""

    text: str
    words: tuple[tuple[str, int, int], ...]
    tokens: tuple[tuple[int, int], ...]


@dataclass
class History:
    """One stream's replies, in the order of its requests."""

    name: str
    expected: Expected
    replies: list[Reply] = field(default_factory=list)
    error: str | None = None

    def problems(self) -> list[str]:
        """Returns what is wrong. A broken stream must have received a prefix of its expected words."""
        found, is_whole = [], self.is_whole
        if any(reply.is_final for reply in self.replies[:-1]):
            found.append("a final reply before the last one")
        if not is_whole and self.error is None:
            found.append("no final reply, and no error")
        processed = [reply.processed_s for reply in self.replies]
        if processed != sorted(processed):
            found.append(f"audio processed goes back: {processed}")
        for what in ("words", "tokens"):
            received = tuple(one for reply in self.replies for one in getattr(reply, what))
            expected = getattr(self.expected, what)
            if received != (expected if is_whole else expected[: len(received)]):
                found.append(f"{what} {received}, expected {expected}")
        if is_whole and self.replies[-1].text != self.expected.text:
            found.append(f"text {self.replies[-1].text!r}, expected {self.expected.text!r}")
        return [f"stream {self.name}: {problem}" for problem in found]

    @property
    def is_whole(self) -> bool:
        """True where the stream received its final reply."""
        return bool(self.replies) and self.replies[-1].is_final


class Histories:
    """The histories of a trial's streams; thread-safe."""

    def __init__(self):
        self._histories: list[History] = []
        self._lock = threading.Lock()

    def open(self, name: str, expected: Expected) -> History:
        """Adds a new stream's history."""
        history = History(name, expected)
        with self._lock:
            self._histories.append(history)
        return history

    @property
    def whole(self) -> int:
        """Number of streams that received their final reply."""
        return sum(history.is_whole for history in self._histories)

    @property
    def broken(self) -> list[History]:
        """Histories of the other streams."""
        return [history for history in self._histories if not history.is_whole]

    def check(self, may_break: bool = False) -> None:
        """Raises AssertionError with the streams that are wrong; a broken one is, unless `may_break`."""
        problems = [problem for history in self._histories for problem in history.problems()]
        if not may_break:
            problems += [f"stream {history.name} broke: {history.error}" for history in self.broken]
        if problems:
            raise AssertionError(f"{len(problems)} problems: " + "; ".join(problems[:5]))


@dataclass(frozen=True)
class Recording:
    """Audio with the result that is expected of the server."""

    path: Path
    """The whole utterance."""
    samples: np.ndarray
    expected: Expected


def make_recordings(model: Path, seconds: float = 1.6) -> list[Recording]:
    """Returns the beginnings of several utterances with this process's own results."""
    recognizer = StreamingRecognizer(model, CONTEXT, max_streams=1)
    recordings = []
    for path in sorted(SPEECH.glob("*.flac")):
        samples = read_audio(path, 16000)[: int(16000 * seconds)]
        reply = Reply.of_result(recognizer.open_stream().finish(samples))
        recordings.append(Recording(path, samples, Expected(reply.text, reply.words, reply.tokens)))
    return recordings


def stream_all(
    stream: RawStream | BatchedRawStream, recording: Recording, history: History, pause_s: float = 0.0
) -> History:
    """Sends a whole stream; an error ends it."""
    ends = [*range(REQUEST_SAMPLES, len(recording.samples), REQUEST_SAMPLES), len(recording.samples)]
    for start, end in zip([0, *ends], ends, strict=False):
        try:
            reply = stream.send(recording.samples[start:end], start == 0, end == ends[-1])
        except (InferenceServerException, OSError) as error:
            history.error = str(error)
            break
        history.replies.append(reply)
        time.sleep(pause_s)
    return history


def send_empty_stream(server: RunningServer) -> None:
    """Sends an empty stream, upon which the server expires idle streams."""
    try:
        with RawStream(server.url("grpc"), "empty") as stream:
            stream.send(NO_SAMPLES, start=True, end=True)
    except InferenceServerException as error:
        assert "STREAM_LIMIT: " in str(error), error
