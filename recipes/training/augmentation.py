"""Augmentation on log-mel frames: tempo, vocal tract length, color, level and noise. Random, seeded by the caller."""

from dataclasses import dataclass

import numpy as np

_DIGITAL_SILENCE = np.float32(np.log(2.0**-24))
"""In a mel bin."""


@dataclass(frozen=True)
class AugmentationConfig:
    """Range or strength of each change."""

    tempo: tuple[float, float] = (0.82, 1.2)
    warp: tuple[float, float] = (0.84, 1.18)
    """Factor on the frequency axis: the length of the vocal tract."""
    color_db: float = 5.0
    """Standard deviation of a smooth curve over the bins."""
    level_db: tuple[float, float] = (-12.0, 10.0)
    noise_probability: float = 0.45
    signal_to_noise_db: tuple[float, float] = (5.0, 30.0)
    frequency_masks: int = 2
    frequency_mask_bins: int = 16
    time_mask_rate_hz: float = 0.8
    """Time masks per audio second."""
    time_mask_frames: int = 16


GENTLE = AugmentationConfig(
    tempo=(0.9, 1.1), warp=(0.94, 1.06), color_db=1.5, level_db=(-4.0, 4.0), noise_probability=0.15,
    signal_to_noise_db=(15.0, 30.0),
)  # fmt: skip
"""Used until the network has found an alignment of labels and frames."""


class Augmenter:
    """Augments the mel frames of one utterance at a time."""

    def __init__(self, config: AugmentationConfig, noises: list[np.ndarray], random: np.random.Generator):
        """noises: log-mel frames [N, F] of sounds without speech, at their recorded level."""
        self.config = config
        """May be changed at any time."""
        self._noises = noises
        self._random = random

    def speaker(self, mel: np.ndarray) -> np.ndarray:
        """Changes tempo, vocal tract, color and level. mel: [N, F] -> [M, F]."""
        config, random = self.config, self._random
        mel = stretch(mel, random.uniform(*config.tempo))
        mel = mel @ warp_matrix(mel.shape[1], random.uniform(*config.warp))
        curve = smooth_curve(mel.shape[1], random) * config.color_db
        return mel + np.float32(decibels(curve + random.uniform(*config.level_db)))

    def add_noise(self, mel: np.ndarray) -> np.ndarray:
        """Adds noise to some utterances."""
        config, random = self.config, self._random
        if not self._noises or random.random() >= config.noise_probability:
            return mel
        noise = self.noise(len(mel))
        loud = np.percentile(np.logaddexp.reduce(mel, axis=1), 90)
        gap = loud - np.percentile(np.logaddexp.reduce(noise, axis=1), 90)
        return np.logaddexp(mel, noise + np.float32(gap - decibels(random.uniform(*config.signal_to_noise_db))))

    def noise(self, frames: int) -> np.ndarray:
        """Noise [frames, F], colored at random."""
        random = self._random
        noise = self._noises[random.integers(len(self._noises))]
        if random.random() < 0.3:  # stationary noise with the clip's mean spectrum
            noise = np.log(np.exp(noise).mean(axis=0, keepdims=True)) + random.normal(0, 0.6, noise.shape)
        copies = -(-frames // len(noise)) + 1
        begin = random.integers(len(noise))
        piece = np.tile(noise, (copies, 1))[begin : begin + frames]
        curve = smooth_curve(noise.shape[1], random) * self.config.color_db
        return (piece + decibels(curve)).astype(np.float32)

    def pause(self, frames: int) -> np.ndarray:
        """Fills a pause between two utterances, [frames, F]: digital silence or quiet noise. Needs a noise."""
        if self._random.random() < 0.5:
            return np.full((frames, self._noises[0].shape[1]), _DIGITAL_SILENCE, np.float32)
        noise = self.noise(frames) - np.float32(decibels(self._random.uniform(10.0, 40.0)))
        return np.maximum(noise, _DIGITAL_SILENCE)

    def mask(self, mel: np.ndarray, fill: float) -> np.ndarray:
        """SpecAugment (arXiv 1904.08779): masks of frequency and time are set to `fill`."""
        config, random = self.config, self._random
        mel = mel.copy()
        frames, bins = mel.shape
        for _ in range(config.frequency_masks):
            width = random.integers(config.frequency_mask_bins + 1)
            begin = random.integers(bins - width + 1)
            mel[:, begin : begin + width] = fill
        for _ in range(random.poisson(config.time_mask_rate_hz * frames / 100)):
            width = min(random.integers(1, config.time_mask_frames + 1), frames)
            begin = random.integers(frames - width + 1)
            mel[begin : begin + width] = fill
        return mel


def decibels(value_db: np.ndarray | float) -> np.ndarray | float:
    """A change of level in the log-power domain."""
    return value_db * (np.log(10.0) / 10.0)


def stretch(mel: np.ndarray, tempo: float) -> np.ndarray:
    """Resamples frames linearly; tempo 2 is twice as fast. Pitch and formants stay."""
    frames = max(1, round(len(mel) / tempo))
    place = np.linspace(0, len(mel) - 1, frames)
    low = place.astype(int)
    high = np.minimum(low + 1, len(mel) - 1)
    share = (place - low)[:, None].astype(np.float32)
    return mel[low] * (1 - share) + mel[high] * share


def warp_matrix(bins: int, factor: float) -> np.ndarray:
    """[F, F] float32: moves spectra along the frequency axis, after vocal tract length perturbation (Jaitly 2013).

    Linear on the mel axis but for the top, where it bends to end at the last bin.
    """
    bend = 0.8 * bins / max(factor, 1.0)
    axis = np.arange(bins, dtype=np.float64)
    slope = (bins - 1 - bend * factor) / (bins - 1 - bend)
    place = np.where(axis < bend, axis * factor, bend * factor + (axis - bend) * slope).clip(0, bins - 1)
    low = np.minimum(place.astype(int), bins - 2)
    share = place - low
    matrix = np.zeros((bins, bins), np.float32)
    matrix[low, np.arange(bins)] = 1 - share
    matrix[low + 1, np.arange(bins)] += share
    return matrix


def smooth_curve(bins: int, random: np.random.Generator, knots: int = 5) -> np.ndarray:
    """[F], a random curve of standard deviation about 1 through a few knots."""
    return np.interp(np.linspace(0, knots - 1, bins), np.arange(knots), random.normal(size=knots))
