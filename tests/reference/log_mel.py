"""Log-mel of a whole signal, written plainly: what the streaming front end must reproduce."""

import torch

from penstock.config import FeatureConfig


def log_mel_reference(
    config: FeatureConfig, window: torch.Tensor, filterbank: torch.Tensor, samples: torch.Tensor
) -> torch.Tensor:
    """samples [L], window [w], filterbank [F, bins] -> [floor(L / hop), F]."""
    frames = len(samples) // config.hop_samples
    if frames == 0:
        return torch.zeros(0, config.mel_bins)
    emphasised = torch.cat([samples[:1], samples[1:] - config.preemphasis * samples[:-1]])
    spectrum = torch.stft(
        emphasised, config.fft_samples, config.hop_samples, len(window), window,
        center=True, pad_mode="constant", return_complex=True,
    )  # fmt: skip
    power = torch.view_as_real(spectrum).square().sum(-1)  # [bins, 1 + frames]
    return torch.log(filterbank @ power + config.log_guard).t()[:frames]
