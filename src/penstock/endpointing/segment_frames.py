"""The ends of segments of many streams by their rules. On the host; independent of searches, audio and torch."""

import numpy as np

from penstock.endpointing.rules import LONGEST_SILENCE_MS, MAX_OVERRUN_S, EndpointRules


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
        self._stable_end = np.zeros(streams, np.int64)  # of the last label that will not change, in frames; 0 before

    def open(self, stream: int, rules: EndpointRules) -> None:
        """A stream begins."""
        self.are_on[stream] = rules.is_on
        self._rules[:, stream] = rules.silence_ms, rules.no_speech_ms, rules.longest_s
        self._at_end_tokens[stream] = rules.at_end_tokens
        self.begin(np.array([stream]))

    def begin(self, streams: np.ndarray) -> None:
        """A segment begins in each of `streams` [n]."""
        self.frames[streams] = 0
        self.force(streams)

    def force(self, streams: np.ndarray, stable_end: int = 0) -> None:
        """A segment begins in each of `streams` [n] whose frames go on: a client has ended the one before.

        stable_end: as in `add`, of a word that goes on.
        """
        self._begin_frames[streams], self._stable_end[streams] = self.frames[streams], stable_end

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
