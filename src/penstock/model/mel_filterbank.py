"""Computes the analysis window and mel filterbank for checkpoints that do not store them."""

import math

import torch

from penstock.model.config import FeatureConfig

_HZ_PER_MEL = 200.0 / 3.0
_LOGARITHMIC_FROM_HZ = 1000.0
_LOGARITHMIC_FROM_MEL = _LOGARITHMIC_FROM_HZ / _HZ_PER_MEL
_LOG_HZ_PER_MEL = math.log(6.4) / 27.0


def front_end_tensors(features: FeatureConfig) -> dict[str, torch.Tensor]:
    """The tensors `features.` of a checkpoint that does not store them."""
    return {
        "features.window": hann_window(features.window_samples),
        "features.mel_filterbank": mel_filterbank(features.sample_rate_hz, features.fft_samples, features.mel_bins),
    }


def hann_window(samples: int) -> torch.Tensor:
    """Returns a symmetric Hann window [samples] float32, zero at both ends."""
    return torch.hann_window(samples, periodic=False)


def mel_filterbank(
    sample_rate_hz: int, fft_samples: int, mel_bins: int, lowest_hz: float = 0.0, highest_hz: float | None = None
) -> torch.Tensor:
    """Returns triangles of area one on Slaney's mel scale, [mel_bins, fft_samples // 2 + 1] float32."""
    highest_hz = highest_hz or sample_rate_hz / 2
    edges_mel = torch.linspace(_mel(lowest_hz), _mel(highest_hz), mel_bins + 2, dtype=torch.float64)
    edges_hz = _hz(edges_mel)  # [mel_bins + 2]
    bin_hz = torch.arange(fft_samples // 2 + 1, dtype=torch.float64) * (sample_rate_hz / fft_samples)
    distance = edges_hz[:, None] - bin_hz[None, :]
    width = edges_hz.diff()[:, None]
    rising, falling = -distance[:-2] / width[:-1], distance[2:] / width[1:]
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    # Rounded before the scaling too, like the filterbanks that checkpoints were trained with.
    return (triangles.float().double() * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).float()


def _mel(hz: float) -> float:
    if hz < _LOGARITHMIC_FROM_HZ:
        return hz / _HZ_PER_MEL
    return _LOGARITHMIC_FROM_MEL + math.log(hz / _LOGARITHMIC_FROM_HZ) / _LOG_HZ_PER_MEL


def _hz(mel: torch.Tensor) -> torch.Tensor:
    logarithmic = _LOGARITHMIC_FROM_HZ * torch.exp(_LOG_HZ_PER_MEL * (mel - _LOGARITHMIC_FROM_MEL))
    return torch.where(mel < _LOGARITHMIC_FROM_MEL, mel * _HZ_PER_MEL, logarithmic)
