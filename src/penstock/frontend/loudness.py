"""Tells whether streams are loud where a client ends a segment: a sign that their last word goes on."""

import numpy as np
import torch

from penstock.frontend.ranks import rounds

_LOUD_NATS = 4.5
"""Ends are loud whose mean log-mel is at most so far below the loudest frame's, which fades."""
_FADING_NATS_PER_S = 0.5
_END_MEL_FRAMES = 4


class Loudness:
    """The levels of streams in slots, in nats: the mean log-mel of frames."""

    def __init__(self, slots: int, mel_frame_s: float):
        self._fading_nats = _FADING_NATS_PER_S * mel_frame_s
        self._peaks, self._ends = np.full((2, slots), -np.inf)
        """Levels of each stream's loudest frame so far, and of its last frames."""

    def add(
        self, slots: np.ndarray, mel: torch.Tensor, chunks: np.ndarray, last_valid: np.ndarray, is_first: np.ndarray
    ) -> np.ndarray:
        """Adds the chunks of rows in order; returns [R] bool, whether each row's stream is loud at its end.

        slots, chunks, last_valid: [R] int64, and mel: [C, N, F] on the CPU, as in `ChunkRows`; is_first: [R] bool.
        """
        self._peaks[slots[is_first]] = self._ends[slots[is_first]] = -np.inf
        busy, is_loud = chunks.nonzero()[0], np.zeros(len(slots), bool)
        levels, last = mel.mean(-1).numpy(), chunks.cumsum() - 1  # [C, N], [R]
        loudest, ends = np.zeros((2, len(slots)))
        if len(busy):
            loudest[busy] = np.maximum.reduceat(levels.max(1), (last - chunks + 1)[busy])
            # The analysis window of the very last frame may lie half behind the audio.
            frames = np.maximum(last_valid[busy, None] - 1 - np.arange(1, _END_MEL_FRAMES + 1), 0)
            ends[busy] = levels[last[busy, None], frames].mean(1)
        fading_nats = self._fading_nats * levels.shape[1] * chunks
        for rows in rounds(slots):
            added = rows[chunks[rows] > 0]
            own = slots[added]
            self._peaks[own] = np.maximum(self._peaks[own] - fading_nats[added], loudest[added])
            self._ends[own] = ends[added]
            is_loud[rows] = self._ends[slots[rows]] >= self._peaks[slots[rows]] - _LOUD_NATS
        return is_loud
