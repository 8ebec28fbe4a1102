"""Sounds made from nothing."""

import numpy as np
import pytest

from penstock.training import sound_effects
from penstock.training.corpus import SAMPLE_RATE_HZ
from penstock.training.sound_effects import sound_effect


@pytest.mark.parametrize("seed", range(40))
def test_sounds_are_finite_in_range_and_audible(seed):
    samples = sound_effect(np.random.default_rng(seed), 1.5)
    assert samples.dtype == np.float32 and len(samples) == 1.5 * SAMPLE_RATE_HZ
    assert np.isfinite(samples).all() and np.abs(samples).max() <= 1
    assert -70 < 10 * np.log10(np.mean(samples**2)) < -9


@pytest.mark.parametrize("kind", ["_coloured_noise", "_hum", "_melody", "_chirps", "_clicks", "_bursts"])
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_is_finite_and_not_silent(kind, seed):
    time_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    sound = getattr(sound_effects, kind)(time_s, np.random.default_rng(seed))
    assert sound.shape == time_s.shape and np.isfinite(sound).all() and sound.std() > 0


def test_the_same_seed_makes_the_same_sound():
    one, other, third = (sound_effect(np.random.default_rng(seed), 0.5) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, third)
