"""Synthetic sounds without speech."""

import numpy as np

from recipes.training.batches import SAMPLE_RATE_HZ


def sound_effect(random: np.random.Generator, seconds: float = 6.0) -> np.ndarray:
    """[n] float32 samples of a random kind, between -60 and -10 dB."""
    time_s = np.arange(int(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    kinds = (_colored_noise, _hum, _melody, _chirps, _clicks, _bursts)
    sound = kinds[random.integers(len(kinds))](time_s, random)
    if random.random() < 0.3:
        sound = sound + 0.3 * _colored_noise(time_s, random)
    level = 10 ** (random.uniform(-60, -10) / 20)
    return (sound / max(np.sqrt(np.mean(sound**2)), 1e-9) * level).clip(-1, 1).astype(np.float32)


def _colored_noise(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    spectrum = np.fft.rfft(random.normal(size=len(time_s)))
    hertz = np.fft.rfftfreq(len(time_s), 1 / SAMPLE_RATE_HZ)
    tilt = (np.maximum(hertz, 20) / 1000) ** -random.uniform(0, 1.2)
    sway = 1 + 0.7 * np.sin(2 * np.pi * random.uniform(0.1, 6) * time_s + random.uniform(0, 6))
    return np.fft.irfft(spectrum * tilt, len(time_s)) * sway


def _harmonics(time_s: np.ndarray, hertz: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A tone with overtones; hertz [n] is its frequency over time."""
    phase = 2 * np.pi * np.cumsum(hertz) / SAMPLE_RATE_HZ
    decay = random.uniform(0.6, 2.5)
    return sum(np.sin(k * phase + random.uniform(0, 6)) * k**-decay for k in range(1, 13) if k * hertz.max() < 7900)


def _hum(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    wobble = 1 + random.uniform(0, 0.05) * np.sin(2 * np.pi * random.uniform(0.2, 8) * time_s)
    return _harmonics(time_s, random.uniform(40, 300) * wobble, random)


def _melody(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    total = np.zeros_like(time_s)
    for _ in range(random.integers(1, 4)):  # voices
        note_s = random.uniform(0.12, 0.8)
        notes = 110 * 2 ** (random.integers(0, 48, int(time_s[-1] / note_s) + 1) / 12)
        index = (time_s / note_s).astype(int)
        envelope = np.exp(-random.uniform(0.5, 8) * (time_s % note_s))
        vibrato = 1 + random.uniform(0, 0.02) * np.sin(2 * np.pi * 5.5 * time_s)
        total += _harmonics(time_s, notes[index] * vibrato, random) * envelope
    return total


def _chirps(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    every_s = random.uniform(0.15, 1.5)
    local = time_s % every_s
    low, high = sorted(random.uniform(500, 7000, 2))
    sweep = low + (high - low) * np.abs(np.sin(np.pi * random.uniform(1, 12) * local))
    return _harmonics(time_s, sweep, random) * np.exp(-random.uniform(2, 12) * local)


def _clicks(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    every = int(SAMPLE_RATE_HZ * random.uniform(0.1, 1.2))
    train = np.zeros_like(time_s)
    train[:: max(every, 1)] = random.uniform(0.5, 1, len(train[:: max(every, 1)]))
    ring = np.exp(-np.arange(1600) / random.uniform(20, 400)) * np.sin(np.arange(1600) * random.uniform(0.1, 2.5))
    return np.convolve(train, ring)[: len(time_s)] + 1e-3 * random.normal(size=len(time_s))


def _bursts(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Short noisy or tonal bursts with silence in between, like barks and knocks."""
    total = 1e-3 * random.normal(size=len(time_s))
    for begin in np.cumsum(random.exponential(random.uniform(0.3, 1.5), 20)):
        where = time_s - begin
        envelope = np.where(where > 0, np.exp(-np.maximum(where, 0) * random.uniform(5, 30)), 0.0)
        tone = _harmonics(time_s, np.full_like(time_s, random.uniform(120, 900)), random)
        total += envelope * (tone + random.uniform(0, 2) * random.normal(size=len(time_s)))
    return total
