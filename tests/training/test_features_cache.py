"""The files that keep features; NeMo's front end is replaced by one of two numbers a frame."""

import numpy as np
import pytest

from penstock.training import features_cache
from penstock.training.corpus import Recording, WordSpan
from penstock.training.features_cache import FeatureCache

RECORDINGS = [
    Recording(np.linspace(0, 1, 330, dtype=np.float32), ("go", "north"), "fash", "one"),
    Recording(np.linspace(1, 2, 470, dtype=np.float32), (), "noise", "two"),
]


class FewFrames:
    """[n] samples -> [n // 160, 2]"""

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        return samples[: 160 * (len(samples) // 160) : 160, None] * np.array([1, 2], np.float32)


class HalfAligner:
    def align(self, recording: Recording) -> tuple[WordSpan, ...]:
        return tuple(WordSpan(word, i, i + 1) for i, word in enumerate(recording.words))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> FeatureCache:
    monkeypatch.setattr(features_cache, "_NemoLogMel", FewFrames)
    monkeypatch.setattr(features_cache, "WordAligner", HalfAligner)
    return FeatureCache(tmp_path / "features")


def test_is_made_once_and_read_back(cache, tmp_path):
    first = cache.load("train", lambda: RECORDINGS, align=True)
    again = FeatureCache(tmp_path / "features").load("train", lambda: pytest.fail("is there already"), align=True)
    for utterances in (first, again):
        for recording, utterance in zip(RECORDINGS, utterances, strict=True):
            np.testing.assert_array_equal(utterance.mel, FewFrames()(recording.samples))
            assert (utterance.words, utterance.speaker) == (recording.words, recording.speaker)
        assert utterances[0].spans == (WordSpan("go", 0, 1), WordSpan("north", 1, 2)) and utterances[1].spans == ()
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["train.npz"]


def test_nothing_is_a_corpus_too(cache):
    assert cache.load("noise", list) == []


def test_bare_samples_have_no_words(cache):
    (utterance,) = cache.load_samples("effects", lambda: [np.ones(320, np.float32)])
    assert utterance.words == () and len(utterance.mel) == 2
