"""Manifests as recordings; batches: padding, the budget of frames, labels, curriculum, utterances without words."""

import json
from itertools import islice

import numpy as np
import pytest
import soundfile
import torch

from recipes.training.augmentation import AugmentationConfig, Augmenter
from recipes.training.batches import SAMPLE_RATE_HZ, BatchMaker, Source, Utterance, read_recordings
from tests.helpers.training_utterances import MEL_BINS, utterance, word_code

STILL = AugmentationConfig(tempo=(1.0, 1.0), warp=(1.0, 1.0), color_db=0.0, level_db=(0.0, 0.0), noise_probability=0.0)
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
        for mel, count, labels, label_count, reference in zip(*batch[:5], strict=True):
            source = said[f"speaker {int(mel[0, 0])}"]
            np.testing.assert_allclose(mel[:, :count].T.numpy(), source.mel, atol=1e-3, rtol=1e-6)
            assert reference == " ".join(source.words)
            assert labels[:label_count].tolist() == encode(reference)


@pytest.mark.parametrize("masks", [False, True])
def test_normalized_frames_have_mean_0_and_deviation_1(masks):
    """As NeMo's `per_feature`; masks are filled with the mean, and padding is 0, too."""
    random = np.random.default_rng(5)
    said = [random.normal(-12, 4, (n, MEL_BINS)).astype(np.float32) for n in (40, 90, 70)]
    drawn = Source(1.0, lambda: Utterance(said[random.integers(len(said))], ("a",), "speaker"))
    made = BatchMaker([drawn], Augmenter(STILL, [], random), encode, random, 900, pool=40, is_normalized=True)
    made.masks = masks
    masked = 0
    for batch in islice(made, 10):
        for mel, count in zip(batch.mel, batch.mel_counts, strict=True):
            frames = torch.from_numpy(next(one for one in said if len(one) == count)).double()
            wanted = ((frames - frames.mean(0)) / (frames.std(0) + 1e-5)).T.float()
            is_masked = mel[:, :count].abs() < 1e-6
            torch.testing.assert_close(mel[:, :count].where(~is_masked, wanted), wanted, atol=1e-3, rtol=0)
            masked += int(is_masked.sum())
            assert not mel[:, count:].any()
    assert (masked > 1000) == masks


def test_joined_rows_have_parts_between_long_pauses():
    """Words are found in the frames of the part that has their labels, and nowhere else."""
    random, noise = np.random.default_rng(3), np.full((50, MEL_BINS), -12, np.float32)
    made = BatchMaker([spoken()], Augmenter(STILL, [noise], random), encode, random, 3200, pool=40, joined=0.7)
    made.masks, rows_of_parts, words = False, [], []
    for batch in islice(made, 40):
        if batch.spans is None:
            assert len(batch.mel) == len(batch.references)
            continue
        assert len(batch.spans) == len(batch.labels) == len(batch.label_counts) == len(batch.references)
        end = {row: 0 for row in range(len(batch.mel))}
        for (row, begin, behind), labels, count, reference in zip(
            batch.spans.tolist(), batch.labels, batch.label_counts, batch.references, strict=True
        ):
            assert begin == end[row] and labels[:count].tolist() == encode(reference)
            codes = batch.mel[row, 2, 8 * begin : 8 * behind].round().tolist()
            found = [code for code, before in zip(codes[1:], codes, strict=False) if code > 0 and code != before]
            assert found == [word_code(word) for word in reference.split()]
            end[row] = behind
            words.append(len(reference.split()))
        assert all(8 * end[row] >= count for row, count in enumerate(batch.mel_counts))
        rows_of_parts += torch.bincount(batch.spans[:, 0]).tolist()
    assert {1, 2, 3} <= set(rows_of_parts) and max(words) > 8  # and shorter pauses within a part


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


def test_utterances_too_long_too_short_or_with_too_many_labels_are_left_out():
    long = utterance(40, " ".join("abcdefg" * 3))
    dense = utterance(41, "a b c d e f g", frames_per_word=1, aligned=False)
    tiny = Utterance(utterance(42, "a").mel[:15], (), "speaker 42")
    good = utterance(43, "a b")
    draws = iter([long, dense, tiny, good] * 1000)
    for batch in islice(maker([Source(1.0, lambda: next(draws))], 400), 10):
        assert (batch.mel[:, 0, 0] == 43).all()


def test_sources_are_drawn_by_weight():
    counts = [0, 0]

    def source(i: int, weight: float) -> Source:
        def draw() -> Utterance:
            counts[i] += 1
            return utterance(i, "a")

        return Source(weight, draw)

    list(islice(maker([source(0, 3.0), source(1, 1.0)]), 60))
    assert counts[0] / sum(counts) == pytest.approx(0.75, abs=0.05)


def test_recordings_have_words_speakers_and_samples(tmp_path):
    for name, peak in (("first", 0.5), ("second", 0.25)):
        soundfile.write(tmp_path / f"{name}.wav", np.linspace(-peak, peak, 1600), SAMPLE_RATE_HZ)
    lines = [
        {"audio_filepath": "first.wav", "text": "Go  NORTH", "speaker": 7},
        {"audio_filepath": str(tmp_path / "second.wav"), "text": ""},
    ]
    manifest = tmp_path / "train.jsonl"
    manifest.write_text(json.dumps(lines[0]) + "\n\n" + json.dumps(lines[1]) + "\n")
    first, second = read_recordings(manifest)
    assert first.words == ("go", "north") and first.speaker == "7"
    assert first.samples.dtype == np.float32
    np.testing.assert_allclose(first.samples, np.linspace(-0.5, 0.5, 1600), atol=1e-4)
    assert second.words == () and second.speaker == str(tmp_path / "second.wav")
