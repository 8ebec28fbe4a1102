"""Log-mel of whole windows of samples, for models without state: normalized over all frames if the model wants it.

Frame f is that of `penstock.frontend.log_mel`: a window of L samples has floor(L / hop) frames. Samples may come in
parts: the frames do not depend on how they are cut.
"""

from collections import deque

import torch
import torch.nn.functional as F

from penstock.frontend.log_mel import LogMel

PIECE_MEL_FRAMES = 2000
"""Frames of one piece, 20 s, and of one transform."""
_MIN_DEVIATION = 1e-5
"""Added to each deviation, as in NeMo."""


class WindowMel:
    """Log-mel frames of one window after another."""

    def __init__(self, log_mel: LogMel):
        self._log_mel = log_mel
        self._part_samples = PIECE_MEL_FRAMES * log_mel.config.hop_samples

    def open(self) -> "MelPieces":
        """A window whose samples come in parts."""
        return MelPieces(self._log_mel)

    def pieces(self, samples: torch.Tensor) -> list[torch.Tensor]:
        """Returns log-mel of samples [L] float32 as consecutive pieces [n, F] float32, floor(L / hop) frames in all."""
        window = self.open()
        for part in samples.split(self._part_samples):
            window.add(part)
        window.end()
        return [window.take() for _ in range(window.pieces_left)]

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """Returns log-mel [N, F] float32 of samples [L] float32, N = floor(L / hop)."""
        return torch.cat([samples.new_zeros(0, self._log_mel.config.mel_bins), *self.pieces(samples)])


class MelPieces:
    """Log-mel of one window: samples come in parts, and after the last one normalized frames leave in pieces."""

    def __init__(self, log_mel: LogMel):
        self._log_mel, self._config = log_mel, log_mel.config
        self._pending = torch.zeros(self._config.window_samples // 2 + 1)
        """Samples from the first one on that the next frame reads."""
        self._sums = BinSums(self._config.mel_bins)
        self._pieces: deque[torch.Tensor] = deque()  # all full but the last
        self._filled = 0  # frames of the last piece
        self._scale: tuple[torch.Tensor, torch.Tensor] | None = None
        self.samples = 0
        """Samples so far."""
        self.mel_frames = 0
        """Frames so far; of a window that has ended, all."""

    @property
    def pieces_left(self) -> int:
        """Pieces that `take` has not returned."""
        return len(self._pieces)

    def add(self, samples: torch.Tensor) -> None:
        """Takes the next samples [n] float32; computes the frames that they complete."""
        self.samples += len(samples)
        pending = torch.cat([self._pending, samples])
        hop = self._config.hop_samples
        spare = len(pending) - self._config.window_samples - 1
        self._pending = self._compute(pending, spare // hop + 1 if spare >= 0 else 0).clone()

    def end(self) -> None:
        """Takes the end of the window: its last frames reach beyond the samples, into silence."""
        hop, filled = self._config.hop_samples, len(self._pending)
        count = self.samples // hop - self.mel_frames
        if count:
            size = 1 + (count - 1) * hop + self._config.window_samples
            self._compute(F.pad(self._pending, (0, max(0, size - filled))), count, filled)
        self._pending = self._pending[:0]
        if self._pieces:
            self._pieces[-1] = self._pieces[-1][: self._filled]
        if self._config.is_normalized and self.mel_frames:
            self._scale = self._sums.mean_and_deviation()

    def take(self) -> torch.Tensor:
        """Returns the next piece [n, F] of a window that has ended, and forgets it."""
        piece = self._pieces.popleft()
        if self._scale is None:
            return piece
        mean, deviation = self._scale
        return piece.sub_(mean).div_(deviation + _MIN_DEVIATION)

    def _compute(self, samples: torch.Tensor, count: int, filled: int | None = None) -> torch.Tensor:
        """Stores the next `count` frames; returns the samples from the first one on that the frame after them reads.

        filled: samples [n] after these are silence after pre-emphasis, as in `LogMel`.
        """
        hop = self._config.hop_samples
        while count:
            if not self._pieces or self._filled == PIECE_MEL_FRAMES:
                self._pieces.append(torch.empty(PIECE_MEL_FRAMES, self._config.mel_bins))
                self._filled = 0
            frames = min(count, PIECE_MEL_FRAMES - self._filled)
            part = samples[: 1 + (frames - 1) * hop + self._config.window_samples].unsqueeze(0)
            mel = self._log_mel(part, None if filled is None else torch.tensor([filled]))[0]
            self._pieces[-1][self._filled : self._filled + frames] = mel
            if self._config.is_normalized:
                self._sums.add(mel)
            self._filled += frames
            self.mel_frames += frames
            count -= frames
            samples = samples[frames * hop :]
            filled = None if filled is None else max(filled - frames * hop, 0)
        return samples


class BinSums:
    """Sums of log-mel frames and of their squares, by bin."""

    def __init__(self, mel_bins: int):
        self._count = 0
        self._sums = torch.zeros(2, mel_bins, dtype=torch.float64)
        self._first: torch.Tensor | None = None
        """[F], subtracted from all frames: no digits are lost where frames hardly differ."""

    def add(self, mel: torch.Tensor) -> None:
        """Adds frames [n, F] float32, n >= 1."""
        if self._first is None:
            self._first = mel[0].double()
        shifted = mel.double() - self._first
        self._count += len(mel)
        self._sums += torch.stack([shifted.sum(dim=0), shifted.square().sum(dim=0)])

    def mean_and_deviation(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns both of all frames, [F] float32; the deviation with one less than their number, of one frame 0."""
        assert self._first is not None
        mean = self._sums[0] / self._count
        squares = (self._sums[1] - self._count * mean.square()).clamp_min_(0.0)
        deviation = (squares / max(self._count - 1, 1)).sqrt()
        return (self._first + mean).float(), deviation.float()
