"""Log-mel of a whole signal in float64, written plainly, and how far float32 may be from it.

NeMo's constants are float32 numbers: samples, window, filterbank and the pre-emphasis coefficient. From these, float64
leaves nothing to the CPU that a test could see.
"""

import math
from typing import NamedTuple

import torch

from penstock.model.config import FeatureConfig

FLOAT32 = 2**-24
FLOAT64 = 2**-53


class LogMelReference(NamedTuple):
    """Exact output of the front end."""

    mel: torch.Tensor
    """[floor(L / hop), F] float64."""
    rounding: torch.Tensor
    """Same shape: bound on the error of the same formula in the given precision."""


def log_mel_reference(
    config: FeatureConfig,
    window: torch.Tensor,
    filterbank: torch.Tensor,
    samples: torch.Tensor,
    unit_roundoff: float = FLOAT32,
) -> LogMelReference:
    """Log-mel of samples [L] with window [w] and filterbank [F, bins]."""
    frames, u = len(samples) // config.hop_samples, unit_roundoff
    if frames == 0:
        return LogMelReference(*torch.zeros(2, 0, config.mel_bins, dtype=torch.float64))
    samples, window, filterbank = samples.double(), window.double(), filterbank.double()
    echo = torch.tensor(config.preemphasis).double() * torch.cat([samples.new_zeros(1), samples[:-1]])
    windowed = _windowed(config, window, samples - echo)[:frames]
    magnitude = torch.fft.rfft(windowed).abs()  # [N, bins]
    energy = magnitude.square() @ filterbank.t()  # [N, F]
    guarded = energy + config.log_guard

    # 1) Spectrum X. Higham, Accuracy and Stability of Numerical Algorithms, theorem 24.2: an FFT of N points of y adds
    # an error of norm at most log2(N) (u + 4 sqrt(2) u) |X|, and |X| = sqrt(N) |y|: 6.7 u log2(N) |y| is a bound on its
    # root mean square over the bins. It is taken as the bound of each bin: the errors of the stages are spread over all
    # bins, and their own root mean square is some 30 times smaller. Three roundings come before the FFT and pass it
    # with their norm: of the product a x[n - 1], of the difference and of the product with the window.
    fft = 6.7 * math.log2(config.fft_samples)
    echo_norm, norm = (
        frame.norm(dim=1, keepdim=True) for frame in (_windowed(config, window, echo)[:frames], windowed)
    )
    spectrum_error = u * (echo_norm + (2 + fft) * norm)  # [N, 1]
    # 2) Energy, a sum over the filter's n bins of |X + e|^2: at most 2 |X| e + e^2 from X. The squares, their sum,
    # NeMo's root and second square are 6 roundings at most; the product with the filterbank is n.
    terms = (filterbank != 0).sum(dim=1) + 6
    energy_error = (2 * magnitude * spectrum_error + spectrum_error.square()) @ filterbank.t() + terms * u * energy
    # 3) Logarithm of 1 + r times the guarded energy, where r is the error so far and that of adding the guard. It
    # cannot be lower than that of no energy at all. The logarithm itself is right to one unit in the last place, 2 u.
    relative = energy_error / guarded + u
    above, below = torch.log1p(relative), -torch.log1p(-torch.minimum(relative, energy / guarded + u))
    mel = torch.log(guarded)
    return LogMelReference(mel, torch.maximum(above, below) + 2 * u * mel.abs())


def _windowed(config: FeatureConfig, window: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
    """Frames of `signal` [L] times the window, [1 + L // hop, fft]; frame f is centred at sample f * hop."""
    half, spare = config.fft_samples // 2, config.fft_samples - len(window)
    frames = torch.nn.functional.pad(signal, (half, half)).unfold(0, config.fft_samples, config.hop_samples)
    return frames * torch.nn.functional.pad(window, (spare // 2, spare - spare // 2))
