"""Streams that speak something known, by threads of this process or by processes that will be killed."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import numpy as np
from tritonclient.utils import InferenceServerException

from penstock.audio import read_audio
from penstock.recognizer import StreamingRecognizer
from tests.golden import golden_utterances
from tests.server.conftest import CONTEXT, RunningServer
from tests.server.doomed_client import speak_until_killed
from tests.server.history import History, Ledger, Spoken
from tests.server.raw_stream import RawStream, Reply

PIECE_SAMPLES = 3200
NO_SAMPLES = np.zeros(0, np.float32)
_FORKS = get_context("forkserver")


@dataclass(frozen=True)
class Voice:
    """Known audio."""

    samples: np.ndarray
    spoken: Spoken


def make_voices(model: Path, seconds: float = 1.6) -> list[Voice]:
    """The beginnings of several utterances, with what this process makes of them."""
    recognizer = StreamingRecognizer(model, CONTEXT, max_streams=1)
    voices = []
    for utterance in golden_utterances():
        samples = read_audio(utterance.path, 16000)[: int(16000 * seconds)]
        reply = Reply.of_result(recognizer.open_stream().finish(samples))
        voices.append(Voice(samples, Spoken(reply.text, reply.words, reply.tokens)))
    return voices


def speak(
    stream: RawStream,
    voice: Voice,
    history: History,
    pause_s: float = 0.0,
    piece_samples: int = PIECE_SAMPLES,
) -> History:
    """A whole stream, which an error ends."""
    ends = [*range(piece_samples, len(voice.samples), piece_samples), len(voice.samples)]
    for start, end in zip([0, *ends], ends, strict=False):
        try:
            reply = stream.send(voice.samples[start:end], start == 0, end == ends[-1])
        except (InferenceServerException, OSError) as error:
            history.error = str(error)
            break
        history.replies.append(reply)
        time.sleep(pause_s)
    return history


@contextmanager
def neighbours(server: RunningServer, voices: list[Voice], count: int = 2) -> Iterator[Ledger]:
    """Streams that go on one after the other while something else happens; every one of them must be told all."""
    ledger, is_over = Ledger(), Event()

    def go_on(number: int) -> None:
        chance = random.Random(number)
        while not is_over.is_set():
            name, voice = f"neighbour-{number}-{time.monotonic_ns()}", chance.choice(voices)
            with RawStream(server.url("grpc"), name, timeout_s=60) as stream:
                speak(stream, voice, ledger.open(name, voice.spoken), 0.02, chance.choice([1600, 3200, 8000]))

    threads = [Thread(target=go_on, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield ledger
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    ledger.check()
    assert ledger.whole


def touch(server: RunningServer) -> None:
    """A request that changes nothing: a stream which nobody has started."""
    try:
        with RawStream(server.url("grpc"), "nobody") as stream:
            stream.send(NO_SAMPLES, start=True, end=True)
    except InferenceServerException as error:
        assert "slots are taken" in str(error), error


class Doomed:
    """A client in a process of its own, in the middle of a stream."""

    def __init__(self, url: str, name: str, samples: np.ndarray):
        _FORKS.set_forkserver_preload(["tests.server.doomed_client"])
        ours, theirs = _FORKS.Pipe(duplex=False)
        self._going: Connection = ours
        self._process = _FORKS.Process(target=speak_until_killed, args=(url, name, samples, theirs), daemon=True)
        self._process.start()

    def wait_until_going(self, timeout_s: float = 30.0) -> None:
        """Until its first request has been answered."""
        assert self._going.poll(timeout_s) and self._going.recv() == "going"

    def kill(self) -> None:
        """SIGKILL, in whatever it does."""
        self._process.kill()
        self._process.join(10)


def refused(call: Callable[[], object]) -> str:
    """The words of the refusal that `call` must get."""
    try:
        call()
    except InferenceServerException as error:
        return str(error)
    raise AssertionError("not refused")
