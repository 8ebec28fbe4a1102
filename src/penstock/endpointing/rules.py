"""The rules that end a segment: the silence after its last label, its duration, and tokens that mean an end.

Evaluated at the end of each chunk of encoder frames, on the best hypothesis, so that segments depend on the audio
alone. Works on the host. Independent of searches, of audio and of torch.
"""

from dataclasses import dataclass

import numpy as np

RESET, CARRY = "reset", "carry"
ENDPOINT_STATES = (RESET, CARRY)
"""The decoder's state at an endpoint: it starts anew, or it is carried into the next segment."""
LONGEST_SILENCE_MS = 160
"""Silence that ends a segment of the longest duration."""
MAX_OVERRUN_S = 5
"""Additional duration of such a segment if there is no such silence."""
MAX_WARM_UP_CHUNKS = 4096


@dataclass(frozen=True)
class EndpointRules:
    """Any of the rules ends a segment; 0 turns a rule off."""

    silence_ms: int = 0
    """Time after the last label, in a segment with labels."""
    no_speech_ms: int = 0
    """Duration of a segment without labels."""
    longest_s: int = 0
    """Duration from which on `LONGEST_SILENCE_MS` without labels suffice, and `MAX_OVERRUN_S` later anything."""
    warm_up_chunks: int = 0
    """A segment ends after exactly these chunks of the stream, and results before are withheld: a client that resumes a
    stream at an endpoint repeats this audio, so that the encoder has its context."""
    at_end_tokens: bool = False
    """A segment ends with the chunk in which the model has written an end token, such as `<EOU>`."""

    @property
    def is_on(self) -> bool:
        """True if any rule may end a segment."""
        return any((self.silence_ms, self.no_speech_ms, self.longest_s, self.warm_up_chunks, self.at_end_tokens))


NO_ENDPOINTS = EndpointRules()


class SegmentFrames:
    """The encoder frames and labels of the current segments of S streams, and the rules that end them."""

    def __init__(self, streams: int, encoder_frame_ms: float):
        self._frame_ms = encoder_frame_ms
        self.are_on = np.zeros(streams, bool)
        """[S], whether any rule may end the stream's segments."""
        self.frames = np.zeros(streams, np.int64)
        """[S], encoder frames so far since the search began: at an endpoint, not where a client ended a segment."""
        self._begin_frames = np.zeros(streams, np.int64)  # those before the segment
        self._rules = np.zeros((3, streams), np.int64)  # silence_ms, no_speech_ms, longest_s
        self._at_end_tokens = np.zeros(streams, bool)
        self._stable_end = np.zeros(streams, np.int64)  # where the last label that stays ends, in frames; 0 before

    def open(self, stream: int, rules: EndpointRules) -> None:
        """A stream begins."""
        self.change(stream, rules)
        self.begin(np.array([stream]))

    def change(self, stream: int, rules: EndpointRules) -> None:
        """The stream goes on with other rules."""
        self.are_on[stream] = rules.is_on
        self._rules[:, stream] = rules.silence_ms, rules.no_speech_ms, rules.longest_s
        self._at_end_tokens[stream] = rules.at_end_tokens

    def begin(self, streams: np.ndarray) -> None:
        """A segment begins in each of `streams` [n]."""
        self.frames[streams] = 0
        self.force(streams)

    def force(self, streams: np.ndarray) -> None:
        """A segment begins in each of `streams` [n] whose frames go on: a client has ended the one before."""
        self._begin_frames[streams], self._stable_end[streams] = self.frames[streams], 0

    def add(
        self,
        streams: np.ndarray,
        frames: int | np.ndarray,
        stable_end: np.ndarray,
        unstable_end: np.ndarray,
        has_end_token: np.ndarray,
    ) -> np.ndarray:
        """Adds a chunk to each of `streams` [n], all different; returns where the segment ends with it, [n] bool.

        frames: of the chunk, or [n] of each. stable_end, unstable_end: [n] as `frames` counts them, ends of the
        last label that will not change and of the best hypothesis's last one that may, each 0 without one in the
        chunk. has_end_token: [n] bool, the best hypothesis has a new end token, which is no label here.
        """
        self.frames[streams] += frames
        self._stable_end[streams] = np.where(stable_end > 0, stable_end, self._stable_end[streams])
        last_end = np.where(unstable_end > 0, unstable_end, self._stable_end[streams])
        total, (silence_ms, no_speech_ms, longest_s) = self.frames[streams], self._rules[:, streams]
        # 1) silence since the end of the last label, which may lie ahead (TDT), or since the start
        begin = self._begin_frames[streams]
        limit_ms = np.where(last_end > 0, silence_ms, no_speech_ms)
        since_ms = (total - np.where(last_end > 0, last_end, begin)) * self._frame_ms
        is_silent = (limit_ms > 0) & (since_ms >= limit_ms)
        # 2) the longest duration, at a short pause or at last without one
        beyond_ms = (total - begin) * self._frame_ms - 1000 * longest_s
        may_end = (since_ms >= LONGEST_SILENCE_MS) | (beyond_ms >= 1000 * MAX_OVERRUN_S)
        is_long = (longest_s > 0) & (beyond_ms >= 0) & may_end
        # 3) the model's own word for it
        return is_silent | is_long | (self._at_end_tokens[streams] & has_end_token)
