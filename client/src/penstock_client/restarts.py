"""Where a stream restarts after an endpoint, and with which audio, so that each segment is a stream of its own audio.

At an endpoint the recognizer has decoded audio up to p, and the segment's last word ended at e. The next segment begins
0.4 s before p, but not before e, or p / 2 without a word: the recognizer ends its segment (`finalize`), its results up
to that one's final are dropped, and the audio from there on is sent again. No I/O. This file is in the client and in
the core; a test keeps the copies equal.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_UNANSWERED_S = 2.0
"""Audio that may be on its way: what follows an endpoint is decoded in vain."""
_LEAD_MS = 400
"""Audio before p that is sent again: a word that has begun there may have no label yet (docs/endpointing.md)."""
_GRID_MS = 10
"""Chunks and encoder frames are multiples of it. The recognizer rounds times: to whole ms, and to float32."""


class Piece(NamedTuple):
    """Audio that is sent, or sent again."""

    samples: npt.NDArray[Any]
    """[n]; n may be 0."""
    ends_segment: bool = False
    """True if the caller ends a segment behind it."""


class Restarts:
    """The audio of one stream since its last restart, and the place of the recognizer's times in the stream.

    The caller sends audio to the recognizer and notes it here; then it asks here what each result means.
    """

    def __init__(self, sample_rate_hz: int):
        self.segment = 0
        """Number of the current segment in the stream."""
        self._rate_hz = sample_rate_hz
        self._grid_samples = _GRID_MS * sample_rate_hz // 1000
        self._start = self._recognizer_start = 0
        """Where the recognizer has started anew: in samples of the stream, and in those that it has received."""
        self._sent = 0
        """Samples that were noted since then."""
        self._pieces: deque[Piece] = deque()
        """The newest of them, at the most."""
        self._dropped = 0
        """Samples that were noted since then, and are not in `_pieces`."""

    @property
    def start_samples(self) -> int:
        """Where the current segment begins in the stream."""
        return self._start

    def note(self, piece: Piece) -> None:
        """Notes audio that is sent."""
        self._pieces.append(piece)
        self._sent += len(piece.samples)

    def stream_ms(self, recognizer_ms: int) -> int:
        """The time of a word in the stream, in ms."""
        return round(1000 * self._start / self._rate_hz + _GRID_MS * self._on_grid(recognizer_ms / 1000))

    def stream_s(self, recognizer_s: float) -> float:
        """Audio processed of the stream, in seconds."""
        return (round(recognizer_s * self._rate_hz) - self._recognizer_start + self._start) / self._rate_hz

    def note_processed(self, recognizer_s: float) -> None:
        """Forgets audio that no endpoint behind `recognizer_s` sends again."""
        processed = round(recognizer_s * self._rate_hz) - self._recognizer_start
        kept_from = processed - (_LEAD_MS // _GRID_MS + 1) * self._grid_samples
        while self._pieces and self._dropped + len(self._pieces[0].samples) <= kept_from:
            self._dropped += len(self._pieces.popleft().samples)

    def note_end(self) -> None:
        """The segment has ended where the caller said: the recognizer has started anew behind that piece."""
        self.segment += 1
        while True:
            piece = self._pieces.popleft()
            self._dropped += len(piece.samples)
            if piece.ends_segment:
                break
        self._move(self._dropped, self._dropped)

    def restart(self, recognizer_s: float, last_word_ms: int | None, unsent_samples: int = 0) -> list[Piece]:
        """Ends the segment at an endpoint; returns what to send again, in order, behind a `finalize`.

        recognizer_s: audio processed, in the final result; last_word_ms: where the segment's last word ended, None
        without a word; unsent_samples: of what was noted, samples that the recognizer will not receive. The pieces are
        noted already.
        """
        self.segment += 1
        # 1) the border, in samples since the last start
        processed = self._on_grid(recognizer_s)
        earliest = -(-processed // 2)  # a border at the start would bring the same endpoint for ever
        if last_word_ms is not None:
            earliest = min(self._on_grid(last_word_ms / 1000), processed)
        border = max(earliest, processed - _LEAD_MS // _GRID_MS) * self._grid_samples
        # 2) the audio behind it, as few pieces
        received = self._sent - unsent_samples
        parts: list[npt.NDArray[Any]] = []
        again: list[Piece] = []
        position = self._dropped
        for samples, ends_segment in self._pieces:
            parts.append(samples[max(0, border - position) :])
            position += len(samples)
            if ends_segment:
                again.append(Piece(_joined(parts), True))
                parts = []
        if sum(map(len, parts)):
            again.append(Piece(_joined(parts)))
        # 3) the recognizer starts anew there
        self._move(border, received)
        self._pieces = deque(again)
        return again

    def _move(self, border: int, received: int) -> None:
        """The recognizer starts anew at `border`, having received `received` samples, both since its last start."""
        self._start += border
        self._recognizer_start += received
        self._sent -= border
        self._dropped = 0

    def _on_grid(self, recognizer_s: float) -> int:
        """A time of the recognizer since its last start, in steps of `_GRID_MS`."""
        return round((recognizer_s - self._recognizer_start / self._rate_hz) * 1000 / _GRID_MS)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    parts = [part for part in parts if len(part)] or parts[:1]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
