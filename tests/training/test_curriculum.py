"""Before an alignment: a few words, hardly changed; after it: everything."""

import numpy as np
import pytest

from penstock.training.augmentation import GENTLE, AugmentationConfig, Augmenter
from penstock.training.batches import BatchMaker, Source
from penstock.training.curriculum import Curriculum
from tests.training.made_up import utterance


@pytest.fixture
def parts():
    random = np.random.default_rng(1)
    augmenter = Augmenter(GENTLE, [], random)
    early, late = [Source(1.0, lambda: utterance(1, "a"))], [Source(1.0, lambda: utterance(2, "b c"))]
    maker = BatchMaker(early, augmenter, lambda text: [ord(letter) for letter in text.split()], random, 900, pool=20)
    return Curriculum(maker, augmenter, early, early + late), maker, augmenter


def test_stages_set_sources_augmentation_and_masks(parts):
    curriculum, maker, augmenter = parts
    curriculum.set_stage(False, False)
    assert (len(maker.sources), augmenter.config, maker.masks) == (1, GENTLE, False)
    curriculum.set_stage(True, False)
    assert (len(maker.sources), augmenter.config, maker.masks) == (2, AugmentationConfig(), False)
    curriculum.set_stage(True, True)
    assert (len(maker.sources), maker.masks) == (2, True)


def test_a_running_iterator_follows_with_its_next_pool(parts):
    curriculum, maker, _ = parts
    curriculum.set_stage(False, False)
    batches = iter(maker)
    assert next(batches).labels.shape[1] == 1
    curriculum.set_stage(True, False)
    assert any(batch.labels.shape[1] == 2 for batch, _ in zip(batches, range(20), strict=False))


def test_gentle_augmentation_stays_within_the_full_one():
    full = AugmentationConfig()
    for name in ("tempo", "warp", "level_db", "signal_to_noise_db"):
        (low, high), (least, most) = getattr(GENTLE, name), getattr(full, name)
        assert least <= low < high <= most, name
    assert GENTLE.colour_db < full.colour_db and GENTLE.noise_probability < full.noise_probability
