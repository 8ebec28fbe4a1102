"""Streams of known audio, and the check of their replies: every final word once, in order, in one stream only.

Each stream has known audio, so that a word of another stream, an extra word and a missing word are all differences.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from penstock.frontend.audio_file import read_audio
from penstock.recognizer import StreamingRecognizer
from trials.server.killed_clients import stream_until_killed
from trials.server.raw_stream import BATCHED, BatchedRawStream, RawStream, Reply, raw_stream
from trials.server.running import CONTEXT, RunningServer

SPEECH = Path(__file__).parents[2] / "tests" / "data" / "an4" / "flac"
REQUEST_SAMPLES = 3200
NO_SAMPLES = np.zeros(0, np.float32)
_FORKS = get_context("forkserver")


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
    """What broke the stream."""

    def problems(self) -> list[str]:
        """Returns what is wrong. A broken stream must have received a prefix of its expected words."""
        found = []
        is_whole = bool(self.replies) and self.replies[-1].is_final
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

    samples: np.ndarray
    expected: Expected


def make_recordings(model: Path, seconds: float = 1.6) -> list[Recording]:
    """Returns the beginnings of several utterances with this process's own results."""
    recognizer = StreamingRecognizer(model, CONTEXT, max_streams=1)
    recordings = []
    for path in sorted(SPEECH.glob("*.flac")):
        samples = read_audio(path, 16000)[: int(16000 * seconds)]
        reply = Reply.of_result(recognizer.open_stream().finish(samples))
        recordings.append(Recording(samples, Expected(reply.text, reply.words, reply.tokens)))
    return recordings


def stream_all(
    stream: RawStream | BatchedRawStream,
    recording: Recording,
    history: History,
    pause_s: float = 0.0,
    request_samples: int = REQUEST_SAMPLES,
) -> History:
    """Sends a whole stream; an error ends it."""
    ends = [*range(request_samples, len(recording.samples), request_samples), len(recording.samples)]
    for start, end in zip([0, *ends], ends, strict=False):
        try:
            reply = stream.send(recording.samples[start:end], start == 0, end == ends[-1])
        except (InferenceServerException, OSError) as error:
            history.error = str(error)
            break
        history.replies.append(reply)
        time.sleep(pause_s)
    return history


@contextmanager
def other_streams(server: RunningServer, recordings: list[Recording], count: int = 2) -> Iterator[Histories]:
    """Sends whole streams one after the other meanwhile, in turn direct and batched ones.

    Every one must receive all its words.
    """
    histories, is_over = Histories(), Event()

    def run_streams(number: int) -> None:
        chance, protocols = random.Random(number), itertools.cycle(("grpc", BATCHED))
        while not is_over.is_set():
            name, recording = f"other-{number}-{time.monotonic_ns()}", chance.choice(recordings)
            with raw_stream(server.ports, name, next(protocols), timeout_s=60) as stream:
                stream_all(
                    stream, recording, histories.open(name, recording.expected), 0.02, chance.choice([1600, 3200, 8000])
                )

    threads = [Thread(target=run_streams, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield histories
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    histories.check()
    assert histories.whole


def send_empty_stream(server: RunningServer) -> None:
    """Sends an empty stream, upon which the server expires idle streams."""
    try:
        with RawStream(server.url("grpc"), "empty") as stream:
            stream.send(NO_SAMPLES, start=True, end=True)
    except InferenceServerException as error:
        assert "STREAM_LIMIT: " in str(error), error


class KilledClient:
    """A client in a process of its own, in mid-stream."""

    def __init__(
        self,
        url: Any,
        name: str | int,
        samples: np.ndarray,
        stream: Callable[[Any, Any, np.ndarray, Connection], None] = stream_until_killed,
    ):
        """`url` and `name` are arguments of `stream`; `name` may be the number of a batched client's streams."""
        _FORKS.set_forkserver_preload(["trials.server.killed_clients"])
        ours, theirs = _FORKS.Pipe(duplex=False)
        self._going: Connection = ours
        self._process = _FORKS.Process(target=stream, args=(url, name, samples, theirs), daemon=True)
        self._process.start()

    def wait_until_going(self, timeout_s: float = 30.0) -> None:
        """Waits until its first request has been answered."""
        assert self._going.poll(timeout_s) and self._going.recv() == "going"

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()
        self._process.join(10)


def rejection(call: Callable[[], object]) -> str:
    """Returns the message of the rejection that `call` must get."""
    try:
        call()
    except InferenceServerException as error:
        return str(error)
    raise AssertionError("not rejected")
