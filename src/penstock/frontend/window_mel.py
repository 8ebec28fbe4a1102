"""Log-mel of whole windows of samples, for models without state: all frames at once, normalized if the model wants it.

Frame f is that of `penstock.frontend.log_mel`: a window of L samples has floor(L / hop) frames.
"""

import torch
import torch.nn.functional as F

from penstock.frontend.log_mel import LogMel

BLOCK_MEL_FRAMES = 2048
"""Frames of one transform: its temporaries are 20 times as large as its result."""
_MIN_DEVIATION = 1e-5
"""Added to each deviation, as in NeMo."""


class WindowMel:
    """Log-mel frames of one window after another."""

    def __init__(self, log_mel: LogMel):
        self._log_mel = log_mel

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """Returns log-mel [N, F] float32 of samples [L] float32, N = floor(L / hop)."""
        config = self._log_mel.config
        count, lead = len(samples) // config.hop_samples, config.window_samples // 2 + 1
        if not count:
            return samples.new_zeros(0, config.mel_bins)
        padded = F.pad(samples, (lead, config.window_samples))
        parts = []
        for begin in range(0, count, BLOCK_MEL_FRAMES):
            frames = min(BLOCK_MEL_FRAMES, count - begin)
            start = begin * config.hop_samples
            size = 1 + (frames - 1) * config.hop_samples + config.window_samples
            filled = torch.tensor([lead + len(samples) - start])
            parts.append(self._log_mel(padded[start : start + size].unsqueeze(0), filled)[0])
        mel = torch.cat(parts)
        return normalized(mel) if config.is_normalized else mel


def normalized(mel: torch.Tensor) -> torch.Tensor:
    """Returns mel [N, F], N >= 1, with mean 0 and deviation 1 in each bin; of a single frame zeros."""
    centered = mel - mel.mean(dim=0)
    deviation = (centered.square().sum(dim=0) / max(len(mel) - 1, 1)).sqrt()
    return centered.div_(deviation + _MIN_DEVIATION)
