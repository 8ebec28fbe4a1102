"""Deterministic test signals: voiced bursts of gliding pitch, hiss and pauses, of three lengths."""

import numpy as np

SAMPLE_RATE_HZ = 16000
LENGTHS_SAMPLES = {"medium": 21923, "short": 4967, "long": 51200}


def make_signals() -> dict[str, np.ndarray]:
    """Name -> 16-bit samples."""
    return {name: _speech_like(seed, length) for seed, (name, length) in enumerate(LENGTHS_SAMPLES.items())}


def _speech_like(seed: int, length: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    samples = 0.003 * generator.standard_normal(length)
    start = int(generator.integers(200, 1500))
    while start < length:
        burst = _burst(generator, int(generator.integers(1500, 6000)))[: length - start]
        samples[start : start + len(burst)] += burst
        start += len(burst) + int(generator.integers(0, 3000))
    return np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def _burst(generator: np.random.Generator, length: int) -> np.ndarray:
    """Harmonics under two moving formants, or hiss."""
    envelope = np.sin(np.pi * np.arange(length) / length) ** 0.5 * generator.uniform(0.05, 0.4)
    if generator.random() < 0.3:
        return envelope * 0.3 * generator.standard_normal(length)
    pitch_hz = np.linspace(generator.uniform(90, 200), generator.uniform(90, 200), length)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE_HZ
    formants = [np.linspace(*generator.uniform(low, high, 2), length) for low, high in ((250, 900), (900, 3200))]
    voice = np.zeros(length)
    for harmonic in range(1, 30):
        gain = sum(np.exp(-(((harmonic * pitch_hz - formant) / 250) ** 2)) for formant in formants)
        voice += gain * np.sin(harmonic * phase)
    return envelope * voice / 3
