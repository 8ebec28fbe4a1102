"""The probabilities of speakers in one stream, and the speaker of a word. No I/O."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock_client.protocol import Word

FRAME_MS = 10
Frames = npt.NDArray[np.float32]


class Probabilities:
    """Speaker probabilities of a stream's frames, in order, as far back as they are needed."""

    def __init__(self, most: int | None = None):
        """most: only the first ones that spoke are chosen."""
        self._most = most
        self._first = 0
        """The number of the oldest frame that is kept."""
        self._blocks: list[Frames] = []
        self._frames = 0

    @property
    def end_ms(self) -> int:
        """Up to here they are known."""
        return FRAME_MS * (self._first + self._frames)

    def add(self, first_frame: int, frames: Frames) -> None:
        """Adds frames [n, K]. ValueError where they do not follow those before, or are no probabilities."""
        if not len(frames):
            return
        if FRAME_MS * first_frame != self.end_ms:
            raise ValueError(f"FIRST_FRAME is {first_frame}, expected {self.end_ms // FRAME_MS}")
        if not ((frames >= 0) & (frames <= 1)).all():  # NaN, too
            raise ValueError("PROBABILITIES has values outside 0 .. 1")
        self._blocks.append(frames)
        self._frames += len(frames)

    def speakers_of(self, words: Sequence[Word]) -> tuple[int | None, ...]:
        """The speaker of each word, from 1: the one with the largest mean probability from its start to its end.

        Of a word that is not known yet the newest frame counts; None where nothing is known.
        """
        if not self._frames:
            return (None,) * len(words)
        self._blocks = [np.concatenate(self._blocks)]
        rows = self._blocks[0][:, : self._most]
        found = []
        for word in words:
            first = min(max(word.start_ms // FRAME_MS - self._first, 0), len(rows) - 1)
            last = max(first + 1, round(word.end_ms / FRAME_MS) - self._first)
            found.append(int(rows[first:last].mean(axis=0).argmax()) + 1)
        return tuple(found)

    def forget(self, end_ms: int) -> None:
        """Frees what is before this time; the newest frame is kept."""
        if (gone := min(end_ms // FRAME_MS - self._first, self._frames - 1)) > 0:
            self._blocks = [np.concatenate(self._blocks)[gone:].copy()]
            self._first, self._frames = self._first + gone, self._frames - gone
