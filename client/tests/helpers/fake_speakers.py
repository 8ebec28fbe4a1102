"""The model `speakers` without a network: samples above 0 are one speaker's, below 0 another's, 0 is silence."""

import threading

import numpy as np

from client.tests.helpers.fakes import ReceivedRequest, RejectionError

HOP, SPEAKERS = 160, 8
LOOK_AHEAD_SAMPLES = 5120


class FakeSpeakers:
    """Decides a frame once the look-ahead has come. Speakers are numbered in the order in which they first speak."""

    def __init__(self):
        self.requests: list[ReceivedRequest] = []
        self.error: str | None = None
        """In place of the next replies."""
        self.is_served = True
        self.max_streams = 8
        self.audio: dict[str, np.ndarray] = {}
        """The frames of each live stream."""
        self.modes: list[str] = []
        self._told: dict[str, int] = {}
        self._lock = threading.Lock()

    def answer(self, request: ReceivedRequest) -> dict[str, np.ndarray]:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: ReceivedRequest) -> dict[str, np.ndarray]:
        if not self.is_served:
            raise RejectionError("Request for unknown model: 'speakers' is not found", 404)
        self.requests.append(request)
        name = request.stream_id
        if request.is_start:
            if len(self.audio) >= self.max_streams:
                raise RejectionError("STREAM_LIMIT: all slots are taken", 503)
            self.modes.append(request.parameters["speaker_mode"])
            self.audio[name], self._told[name] = np.zeros(0, np.float32), 0
        if self.error:
            raise RejectionError(self.error)
        audio = self.audio[name] = np.concatenate([self.audio[name], request.samples])
        known = -(-len(audio) // HOP) if request.is_end else max(0, len(audio) - LOOK_AHEAD_SAMPLES) // HOP
        first, self._told[name] = self._told[name], max(known, self._told[name])
        frames = probabilities(audio)[first : self._told[name]]
        if request.is_end:
            del self.audio[name]
        return {
            "PROBABILITIES": frames.reshape(1, -1),
            "FIRST_FRAME": np.array([[first]], np.int64),
            "SPEAKERS": np.array([[SPEAKERS]], np.int32),
        }


def probabilities(audio: np.ndarray) -> np.ndarray:
    """[n, 8] of audio."""
    frames = np.zeros((-(-len(audio) // HOP), SPEAKERS), np.float32)
    signs = [np.sign(audio[HOP * i : HOP * (i + 1)].mean()) for i in range(len(frames))]
    order = list(dict.fromkeys(sign for sign in signs if sign))
    for frame, sign in zip(frames, signs, strict=True):
        if sign:
            frame[order.index(sign)] = 0.9
    return frames


def voices(*speakers: int) -> np.ndarray:
    """100 ms of audio for each: 1 and 2 speak, 0 is silence. 1 has samples below 0."""
    return np.repeat(np.array([(0, -0.5, 0.5)[each] for each in speakers], np.float32), 1600)
