"""Batches: padding, the budget of frames, labels, utterances without words."""

from itertools import islice

import numpy as np
import pytest
import torch

from penstock.training.augmentation import AugmentationConfig, Augmenter
from penstock.training.batches import BatchMaker, Source
from penstock.training.corpus import Utterance
from tests.training.made_up import MEL_BINS, utterance

STILL = AugmentationConfig(
    tempo=(1.0, 1.0), warp=(1.0, 1.0), colour_db=0.0, level_db=(0.0, 0.0), noise_probability=0.0
)  # fmt: skip
ALPHABET = "abcdefg"


def encode(text: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in text.split()]


def utterances(seed: int = 0) -> list[Utterance]:
    random = np.random.default_rng(seed)
    return [utterance(i, " ".join(random.choice(list(ALPHABET), random.integers(1, 9)))) for i in range(30)]


def maker(sources: list[Source], frames: int = 900, seed: int = 1, masks: bool = False) -> BatchMaker:
    random = np.random.default_rng(seed)
    made = BatchMaker(sources, Augmenter(STILL, [], random), encode, random, frames, pool=40)
    made.masks = masks
    return made


def spoken(seed: int = 2) -> Source:
    random, said = np.random.default_rng(seed), utterances()
    return Source(1.0, lambda: said[random.integers(len(said))])


def test_labels_and_frames_are_those_of_one_utterance():
    said = {f"speaker {i}": u for i, u in enumerate(utterances())}
    for batch in islice(maker([spoken()]), 30):
        for mel, count, labels, label_count in zip(*batch, strict=True):
            source = said[f"speaker {int(mel[0, 0])}"]
            np.testing.assert_allclose(mel[:, :count].T.numpy(), source.mel, atol=1e-3, rtol=1e-6)
            assert labels[:label_count].tolist() == encode(" ".join(source.words))


def test_padding_is_zero_and_no_wider_than_needed():
    for batch in islice(maker([spoken()]), 30):
        assert batch.mel.dtype == torch.float32 and batch.labels.dtype == torch.int64
        assert batch.mel_counts.dtype == batch.label_counts.dtype == torch.int64
        assert batch.mel.shape[1:] == (MEL_BINS, batch.mel_counts.max())
        assert batch.labels.shape[1] == batch.label_counts.max()
        for row, count in enumerate(batch.mel_counts):
            assert not batch.mel[row, :, count:].any()
        for row, count in enumerate(batch.label_counts):
            assert not batch.labels[row, count:].any()


@pytest.mark.parametrize("frames", [300, 900, 3200])
def test_the_budget_counts_padding_and_is_used(frames):
    shares = []
    for batch in islice(maker([spoken()], frames), 40):
        used = batch.mel.shape[0] * batch.mel.shape[2]
        assert used <= frames
        shares.append(used / frames)
    assert np.mean(shares) > 0.6


def test_what_is_longer_than_a_batch_or_has_too_many_labels_for_its_frames_is_left_out():
    long = utterance(40, " ".join("abcdefg" * 3))
    dense = utterance(41, "a b c d e f g", frames_a_word=1, aligned=False)
    tiny = Utterance(utterance(42, "a").mel[:15], (), "speaker 42")
    good = utterance(43, "a b")
    turn = iter([long, dense, tiny, good] * 1000)
    for batch in islice(maker([Source(1.0, lambda: next(turn))], 400), 10):
        assert (batch.mel[:, 0, 0] == 43).all()


def test_utterances_without_words_have_no_labels():
    silent = Source(1.0, lambda: Utterance(np.full((50, MEL_BINS), -12, np.float32), (), "noise"))
    for batch in islice(maker([silent]), 5):
        assert batch.labels.shape[1] == 0 and not batch.label_counts.any()
    found = list(islice(maker([spoken(), silent]), 40))
    assert any((b.label_counts == 0).any() for b in found) and any((b.label_counts > 0).any() for b in found)


def test_sources_are_drawn_by_weight():
    counts = [0, 0]

    def source(i: int, weight: float) -> Source:
        def draw() -> Utterance:
            counts[i] += 1
            return utterance(i, "a")

        return Source(weight, draw)

    list(islice(maker([source(0, 3.0), source(1, 1.0)]), 60))
    assert counts[0] / sum(counts) == pytest.approx(0.75, abs=0.05)


def test_masks_come_with_the_switch():
    still, masked = maker([spoken()]), maker([spoken()], masks=True)

    def silent_share(made: BatchMaker) -> float:
        (batch,) = islice(made, 1)
        return float((batch.mel[:, 3:] == -12).float().mean())

    assert silent_share(masked) < silent_share(still)


def test_the_same_seed_gives_the_same_batches():
    for one, other in zip(islice(maker([spoken()], masks=True), 5), maker([spoken()], masks=True), strict=False):
        for left, right in zip(one, other, strict=True):
            assert torch.equal(left, right)
