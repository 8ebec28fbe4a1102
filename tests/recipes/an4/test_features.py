"""The feature cache, with a front end of two numbers per frame; forced alignment, where pocketsphinx is installed."""

from pathlib import Path

import numpy as np
import pytest

from recipes.an4 import features
from recipes.an4.features import FeatureCache, WordAligner
from recipes.training.batches import Recording, WordSpan, read_recordings

MANIFEST = Path(__file__).parents[2] / "data" / "an4" / "manifest.jsonl"

RECORDINGS = [
    Recording(np.linspace(0, 1, 330, dtype=np.float32), ("go", "north"), "fash"),
    Recording(np.linspace(1, 2, 470, dtype=np.float32), (), "noise"),
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
    monkeypatch.setattr(features, "_NemoLogMel", FewFrames)
    monkeypatch.setattr(features, "WordAligner", HalfAligner)
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


@pytest.fixture(scope="module")
def aligner():
    pytest.importorskip("pocketsphinx", reason="extra `train`")
    return WordAligner()


def test_words_lie_in_order_within_the_recording(aligner):
    recordings = read_recordings(MANIFEST)
    aligned = [(recording, aligner.align(recording)) for recording in recordings]
    assert sum(bool(spans) for _, spans in aligned) >= len(recordings) - 1
    for recording, spans in aligned:
        assert not spans or tuple(span.word for span in spans) == recording.words
        places = [place for span in spans for place in (span.begin, span.end)]
        assert places == sorted(places)
        assert not places or places[-1] <= len(recording.samples) / 160 + 1


@pytest.mark.parametrize("words", [(), ("qqqzzx",)])
def test_what_cannot_be_aligned_gives_nothing(aligner, words):
    assert aligner.align(Recording(np.zeros(8000, np.float32), words, "speaker")) == ()
