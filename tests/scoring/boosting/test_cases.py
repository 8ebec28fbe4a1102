"""Boosting a list in small letters on a model that writes capitals: the right case comes, and nothing else."""

import json
from pathlib import Path

import numpy as np
import soundfile

from penstock.recognizer import StreamingRecognizer
from tests.helpers.random_models import with_piece_texts
from tests.helpers.recognition import recognize_alone
from tests.scoring.boosting.test_phrases import CAPITALS

AN4 = Path(__file__).parents[2] / "data" / "an4"
BOOST = 3.0
WORD, MISHEARD = "Eighteenth", "nineteenth"
NOISES = (0.0, 0.02)  # of the largest sample


def test_the_word_comes_at_the_boost_of_the_right_case_and_in_its_recording_alone(bundled_model, tmp_path):
    recognizer = StreamingRecognizer(with_piece_texts(bundled_model, tmp_path, CAPITALS).directory, max_streams=1)

    def text_of(samples: np.ndarray, phrase: str, unknown_phrases: str = "ignore") -> str:
        options = {"boosted_phrases": [[phrase, BOOST]], "unknown_phrases": unknown_phrases}
        return recognize_alone(recognizer, samples, options=options).text

    lines = [json.loads(line) for line in (AN4 / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    recordings = {line["text"]: soundfile.read(AN4 / line["audio_filepath"], dtype="float32")[0] for line in lines}
    (own,) = (recordings.pop(text) for text in list(recordings) if WORD.lower() in text)
    right = text_of(own, WORD, "reject")
    assert WORD in right and MISHEARD not in right
    assert MISHEARD in text_of(own, WORD.lower(), "reject")
    assert all(text_of(own, given) == right for given in (WORD.lower(), WORD, WORD.upper()))
    generator = np.random.default_rng(0)
    assert len(recordings) * len(NOISES) == 10
    for samples in recordings.values():
        for noise in NOISES:
            noisy = samples + noise * np.abs(samples).max() * generator.standard_normal(len(samples), np.float32)
            assert WORD.lower() not in text_of(noisy, WORD.lower()).lower()
