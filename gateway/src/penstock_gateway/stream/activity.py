"""One idea of time for a live stream: its age, its client's silence, and what is due."""

import time

from penstock_gateway import limits


class Activity:
    """Notes when a stream's client was active. Times are those of the monotonic clock."""

    def __init__(self, idle_s: float, parks: bool, pause_s: float = 0.0):
        """idle_s: without audio, then the stream ends; where it `parks`, only its slot is given back until audio comes.

        pause_s: silence that ends a segment; 0: only the client ends it.
        """
        self.pause_s = pause_s
        self.parks, self._idle_s = parks, idle_s
        self.started_s = self.heard_s = self._audio_s = self._kept_s = time.monotonic()
        """heard_s: of the last message, also such as a ping, whose client may be without audio for longer."""
        self._waits = 0
        self.has_audio = False
        """Since the last end of a segment by the client or by missing messages."""

    def note_audio(self) -> None:
        """Notes audio, or a message that shows that the client goes on."""
        self._audio_s = time.monotonic()

    def note_stall(self, seconds: float) -> None:
        """Notes that this process was stopped: the client was not silent, its audio waits to be read."""
        self._audio_s += seconds

    def __enter__(self) -> None:
        """Waiting for the server or a decoder, in a `with` block, is not silence."""
        self._waits += 1

    def __exit__(self, *_: object) -> None:
        self._waits -= 1
        self.note_audio()

    def silent_s(self, now_s: float) -> float:
        """Time without audio."""
        if self._waits:
            self._audio_s = now_s
        return now_s - self._audio_s

    def is_idle(self, now_s: float) -> bool:
        """True once its slot is needed no longer."""
        return self.silent_s(now_s) > self._idle_s

    def is_gone(self, now_s: float) -> bool:
        """True once its client has left without a word."""
        if not self.parks:
            return self.is_idle(now_s)
        return min(self.silent_s(now_s), now_s - self.heard_s) > limits.MAX_IDLE_S

    def lacks_end(self, now_s: float) -> bool:
        """True where a pause has no audio, so that the server sees no end of the segment: a mute client sends none."""
        return bool(self.pause_s) and self.has_audio and self.silent_s(now_s) > self.pause_s + limits.LATE_S

    def take_keep_alive(self, now_s: float, period_s: float) -> bool:
        """True once in a period: the server is to see that the stream is alive, also where audio completes no chunk."""
        is_due = now_s - self._kept_s > period_s
        if is_due:
            self._kept_s = now_s
        return is_due
