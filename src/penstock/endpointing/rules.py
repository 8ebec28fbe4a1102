"""The rules that end a segment: the silence behind its last label, and its duration.

Evaluated at the end of each chunk of encoder frames, on the best hypothesis, so that segments depend on the audio
alone. Works on the host. Independent of searches, of audio and of torch.
"""

from dataclasses import dataclass

RESTART, SOFT = "restart", "soft"
SEGMENTS = (RESTART, SOFT)
"""What an endpoint does: restart the stream in the pause, or report it (docs/endpointing.md). The first by default."""
LONGEST_SILENCE_MS = 160
"""Silence that ends a segment of the longest duration."""
MAX_OVERRUN_S = 5
"""How much longer such a segment may get where there is no such silence."""


@dataclass(frozen=True)
class EndpointRules:
    """Any of the rules ends a segment; 0 turns a rule off."""

    silence_ms: int = 0
    """Time behind the last label, in a segment with labels."""
    no_speech_ms: int = 0
    """Duration of a segment without labels."""
    longest_s: int = 0
    """Duration from which on `LONGEST_SILENCE_MS` without labels suffice, and `MAX_OVERRUN_S` later anything."""

    @property
    def is_on(self) -> bool:
        """True if any rule may end a segment."""
        return bool(self.silence_ms or self.no_speech_ms or self.longest_s)

    def ends(self, segment_ms: float, silence_ms: float, has_labels: bool) -> bool:
        """True if the segment ends here.

        segment_ms: its duration; silence_ms: time since the end of its last label, which may lie ahead (TDT), or since
        its start.
        """
        limit_ms = self.silence_ms if has_labels else self.no_speech_ms
        if limit_ms and silence_ms >= limit_ms:
            return True
        beyond_ms = segment_ms - 1000 * self.longest_s
        if not self.longest_s or beyond_ms < 0:
            return False
        return silence_ms >= LONGEST_SILENCE_MS or beyond_ms >= 1000 * MAX_OVERRUN_S


NO_ENDPOINTS = EndpointRules()


class SegmentFrames:
    """The encoder frames and labels of a stream's current segment."""

    def __init__(self, rules: EndpointRules, encoder_frame_ms: float):
        self._rules, self._frame_ms = rules, encoder_frame_ms
        self.begin()

    def begin(self) -> None:
        """A segment begins."""
        self.frames = 0
        """Encoder frames of the segment so far."""
        self._stable_end = 0
        """End of its last label that will not change, in frames; 0 before the first."""

    def add(self, frames: int, stable_end: int, unstable_end: int) -> bool:
        """Adds a chunk; True if the segment ends with it.

        stable_end, unstable_end: in frames from the segment's start, ends of the last label that will not change and
        of the best hypothesis's last one that may, each 0 without one in the chunk.
        """
        self.frames += frames
        self._stable_end = stable_end or self._stable_end
        last_end = unstable_end or self._stable_end
        segment_ms, silence_ms = self.frames * self._frame_ms, (self.frames - last_end) * self._frame_ms
        return self._rules.ends(segment_ms, silence_ms, has_labels=last_end > 0)
