"""Augmentation on log-mel frames: what each change may do, and what it may not."""

import numpy as np
import pytest

from recipes.training import sounds
from recipes.training.augmentation import AugmentationConfig, Augmenter, stretch, warp_matrix
from recipes.training.batches import SAMPLE_RATE_HZ

FRAMES, BINS = 97, 80


def random_mel(seed: int, frames: int = FRAMES) -> np.ndarray:
    return np.random.default_rng(seed).normal(-12, 3.5, (frames, BINS)).astype(np.float32)


def augmenter(seed: int = 0, noises: int = 2, **changes) -> Augmenter:
    clips = [random_mel(100 + i, 60 + 37 * i) for i in range(noises)]
    return Augmenter(AugmentationConfig(**changes), clips, np.random.default_rng(seed))


@pytest.mark.parametrize("factor", [0.84, 1.18])
def test_a_warp_takes_a_bin_from_factor_times_its_place_and_keeps_the_order(factor):
    places = np.arange(BINS, dtype=np.float32) @ warp_matrix(BINS, factor)
    np.testing.assert_allclose(places[:50], factor * np.arange(50), atol=1e-4)
    assert (np.diff(places) > 0).all()
    assert places[-1] == pytest.approx(BINS - 1, abs=1e-4)


@pytest.mark.parametrize("tempo", [0.5, 0.82, 1.0, 1.2, 2.0])
def test_a_stretch_keeps_the_ends_and_has_the_length_of_its_tempo(tempo):
    mel = random_mel(1)
    found = stretch(mel, tempo)
    assert found.shape == (round(FRAMES / tempo), BINS)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[[0, -1]], mel[[0, -1]])
    assert found.min() >= mel.min() - 1e-4 and found.max() <= mel.max() + 1e-4
    if tempo == 1.0:
        np.testing.assert_allclose(found, mel, atol=1e-4)


def test_masks_replace_whole_bands_and_stretches_and_touch_nothing_else():
    mel, fill = random_mel(2, 400), -77.0
    kept = mel.copy()
    masked = augmenter(time_mask_rate_hz=3.0).mask(mel, fill)
    replaced = masked == fill
    np.testing.assert_array_equal(mel, kept)
    np.testing.assert_array_equal(masked[~replaced], mel[~replaced])
    rows, columns = replaced.all(axis=1), replaced.all(axis=0)
    assert rows.any() and columns.any()
    np.testing.assert_array_equal(replaced, rows[:, None] | columns[None, :])
    assert columns.sum() <= 2 * 16


@pytest.mark.parametrize("wanted_db", [0.0, 5.0, 12.0])
def test_noise_is_added_at_the_ratio_asked_for(wanted_db):
    mel = random_mel(3)
    noisy = augmenter(4, noise_probability=1.0, signal_to_noise_db=(wanted_db, wanted_db)).add_noise(mel)
    assert (noisy >= mel - 1e-5).all()
    noise = np.exp(noisy.astype(np.float64)) - np.exp(mel.astype(np.float64))
    loud = [np.percentile(10 * np.log10(power.sum(axis=1)), 90) for power in (np.exp(mel.astype(np.float64)), noise)]
    assert loud[0] - loud[1] == pytest.approx(wanted_db, abs=0.1)


def test_a_pause_is_digital_silence_or_quieter_than_the_noise():
    made, silence = augmenter(), np.float32(-24 * np.log(2))
    pauses = [made.pause(frames) for frames in range(20, 60)]
    assert [pause.shape for pause in pauses] == [(frames, BINS) for frames in range(20, 60)]
    assert all(pause.dtype == np.float32 and pause.min() >= silence for pause in pauses)
    silent = sum(bool((pause == silence).all()) for pause in pauses)
    assert 8 < silent < 32
    assert np.mean([pause.mean() for pause in pauses]) < -13


@pytest.mark.parametrize("kind", ["_colored_noise", "_hum", "_melody", "_chirps", "_clicks", "_bursts"])
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_is_finite_and_not_silent(kind, seed):
    time_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    sound = getattr(sounds, kind)(time_s, np.random.default_rng(seed))
    assert sound.shape == time_s.shape and np.isfinite(sound).all() and sound.std() > 0
