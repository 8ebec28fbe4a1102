"""Forced alignment, where pocketsphinx is installed."""

from pathlib import Path

import numpy as np
import pytest

from penstock.training.corpus import Recording, read_manifest

MANIFEST = Path(__file__).parents[1] / "data" / "an4" / "manifest.jsonl"


@pytest.fixture(scope="module")
def aligner():
    pytest.importorskip("pocketsphinx", reason="extra `train`")
    from penstock.training.alignment import WordAligner

    return WordAligner()


def test_words_lie_in_order_within_the_recording(aligner):
    recordings = read_manifest(MANIFEST)
    aligned = [(recording, aligner.align(recording)) for recording in recordings]
    assert sum(bool(spans) for _, spans in aligned) >= len(recordings) - 1
    for recording, spans in aligned:
        assert not spans or tuple(span.word for span in spans) == recording.words
        places = [place for span in spans for place in (span.begin, span.end)]
        assert places == sorted(places)
        assert not places or places[-1] <= len(recording.samples) / 160 + 1


@pytest.mark.parametrize("words", [(), ("qqqzzx",)])
def test_what_cannot_be_aligned_gives_nothing(aligner, words):
    assert aligner.align(Recording(np.zeros(8000, np.float32), words, "nobody", "x")) == ()
