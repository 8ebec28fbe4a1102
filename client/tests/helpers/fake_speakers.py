"""The speaker model behind `asr_batch_speakers`, without a network: a block of audio is of the voice of its mean value.

Speakers are numbered in the order in which they first speak in a stream, as the server does.
"""

import threading
from collections.abc import Callable

import numpy as np

from client.tests.helpers.fakes import RejectionError, Stream

MODEL = "asr_batch_speakers"
SPEAKERS = 8
NOT_SERVED = "SPEAKERS_NOT_SERVED: speakers are not served; start the server with --speakers BUNDLE"
AWAY = f"Request for unknown model: '{MODEL}' version 1 is not at ready state"
_START, _END = 1, 2
_BLOCK = 800


class FakeSpeakers:
    """Admits streams with speakers, and labels the words of their finals."""

    def __init__(self):
        self.is_served = True
        self.is_away = False
        """The model has ended: requests with speakers fail at once."""
        self.fails = False
        """The model fails, and goes on: its words have no speakers."""
        self.max_streams = 8
        self.before: Callable[[np.ndarray], None] = lambda rows: None
        """Called with the ROWS of a request with speakers before that is answered."""
        self.audio: dict[Stream, np.ndarray] = {}
        """Samples of each live stream."""
        self.modes: list[str] = []
        self._words: dict[Stream, list[tuple[int, int]]] = {}
        """Times of the words of each stream's segment."""
        self._lost: set[Stream] = set()
        self._lock = threading.Lock()

    @property
    def parameters(self) -> dict[str, str]:
        """The part of the server's offer."""
        return {"speakers": str(SPEAKERS), "speaker_streams": str(self.max_streams)} if self.is_served else {}

    def check(self, model: str, rows: np.ndarray) -> bool:
        """True for a request with speakers. RejectionError while the model is away."""
        if model != MODEL:
            return False
        self.before(rows)
        if self.is_away:
            raise RejectionError(AWAY)
        return True

    def take(self, stream: Stream, samples: np.ndarray, flags: int, options: dict, is_here: bool) -> None:
        """Takes a row that the recognizer has not seen yet. RejectionError where its stream may not start."""
        with self._lock:
            if flags & _START and "speakers" in options:
                if not (is_here and self.is_served):
                    raise RejectionError(NOT_SERVED)
                if len(self.audio) >= self.max_streams:
                    raise RejectionError(f"STREAM_LIMIT: all {self.max_streams} speaker streams are taken")
                self.modes.append(options.get("speaker_mode", "low_latency"))
                self.audio[stream], self._words[stream] = np.zeros(0, np.float32), []
            if stream in self._lost and not flags & _END:
                raise RejectionError("STREAM_LOST: the model speakers has ended")
            if stream in self.audio:
                assert is_here, "all rows of a stream with speakers go to one model"
                self.audio[stream] = np.concatenate([self.audio[stream], samples])

    def lose(self) -> None:
        """The process is replaced: its streams are lost."""
        self._lost |= self.audio.keys()
        self.audio.clear()

    def label(self, stream: Stream, entry: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The next entry of a stream's answers, with its speakers where it is final."""
        if stream not in self.audio:
            return entry
        words = self._words[stream]
        words += zip(entry["WORD_START_MS"][0].tolist(), entry["WORD_END_MS"][0].tolist(), strict=True)
        if not entry["IS_FINAL"].item():
            return entry
        voices = [_voice(self.audio[stream][16 * begin : 16 * end]) for begin, end in words]
        self._words[stream] = []
        order = list(dict.fromkeys(_voice(block) for block in _blocks(self.audio[stream])))
        numbers = [number for number in order if number is not None]
        found = [0 if self.fails or not numbers else numbers.index(each) + 1 if each else 1 for each in voices]
        return entry | {"SPEAKER_COUNTS": _row([len(found)]), "WORD_SPEAKERS": _row(found)}

    def end(self, stream: Stream, flags: int) -> None:
        """The row is answered."""
        if flags & _END:
            self.audio.pop(stream, None)


def _blocks(audio: np.ndarray) -> list[np.ndarray]:
    return [audio[start : start + _BLOCK] for start in range(0, len(audio), _BLOCK)]


def _voice(block: np.ndarray) -> int | None:
    """The voice of a block, by the hundreds of its words' numbers; None for silence."""
    value = round(float(np.median(block)) * 4096) if len(block) else 0
    return None if value == 0 else 1 + value // 100


def _row(values: list[int]) -> np.ndarray:
    return np.array([values], np.int32).reshape(1, -1)


def voices(*speakers: int) -> np.ndarray:
    """100 ms of audio for each: 1 and 2 speak, 0 is silence. 1 has samples below 0."""
    return np.repeat(np.array([(0, -0.5, 0.5)[each] for each in speakers], np.float32), 1600)
