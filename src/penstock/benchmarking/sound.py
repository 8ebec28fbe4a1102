"""Samples for a benchmark's streams: recordings cut and repeated, or a made-up sound. Knows no model."""

import numpy as np

_PITCH_HZ, _SYLLABLES_PER_SECOND = 120.0, 4.0


def cut_streams(recording: np.ndarray, batch: int, samples: int) -> np.ndarray:
    """[batch, samples] float32: the recording [n], repeated as needed, from another place on for each stream."""
    starts = np.arange(batch) * len(recording) // batch
    places = (starts[:, None] + np.arange(samples)) % len(recording)
    return np.ascontiguousarray(recording[places], dtype=np.float32)


def make_sound(samples: int, sample_rate_hz: int) -> np.ndarray:
    """[samples] float32: a buzz in noise that swells like syllables. Nobody's speech: a model finds few labels."""
    generator, time_s = np.random.default_rng(0), np.arange(samples) / sample_rate_hz
    buzz = sum(np.sin(2 * np.pi * _PITCH_HZ * k * time_s) / k for k in range(1, 20))
    swell = 0.5 - 0.5 * np.cos(2 * np.pi * _SYLLABLES_PER_SECOND * time_s)
    return (0.1 * swell * (buzz + generator.normal(0.0, 0.5, samples))).astype(np.float32)
