"""New utterances from old ones: one speaker each, frames copied, the transcript that of the excerpts."""

import numpy as np
import pytest

from recipes.an4.recombination import Recombiner
from tests.helpers.training_utterances import utterance, word_code

CORPUS = [
    utterance(1, "go north a b"),
    utterance(1, "b c stop", aligned=False),
    utterance(1, "c d"),
    utterance(2, "stop e"),
    utterance(2, "yes f g"),
    utterance(3, "no", aligned=False),
]
WORDS = {1: {"go", "north", "a", "b", "c", "d"}, 2: {"stop", "e", "yes", "f", "g"}}


def frames_of(speaker: int) -> set[bytes]:
    return {frame.tobytes() for said in CORPUS if said.speaker == f"speaker {speaker}" for frame in said.mel}


def drawn(count: int = 100):
    recombiner = Recombiner(CORPUS, np.random.default_rng(5))
    return [recombiner.words() for _ in range(count)]


def test_frames_are_copies_of_one_speakers_frames():
    speakers = set()
    for found in drawn():
        (speaker,) = set(found.mel[:, 0].astype(int))
        assert found.speaker == f"speaker {speaker}"
        assert {frame.tobytes() for frame in found.mel} <= frames_of(speaker)
        speakers.add(speaker)
    assert speakers == {1, 2}  # nothing of the third is aligned


def test_the_transcript_is_that_of_the_pieces():
    for found in drawn():
        codes = found.mel[:, 2].astype(int)
        codes_found = [code for before, code in zip([0, *codes], codes, strict=False) if code and code != before]
        expected = [word_code(word) for word in found.words]
        # Two excerpts of one word without a pause between still have silent margins.
        assert codes_found == expected


def test_words_are_those_of_the_speaker_in_the_shape_of_a_sentence():
    shapes = {tuple(len(word) == 1 for word in said.words) for said in CORPUS}
    for found in drawn():
        assert set(found.words) <= WORDS[int(found.mel[0, 0])]
        assert tuple(len(word) == 1 for word in found.words) in shapes


@pytest.mark.parametrize("max_frames", [1, 200, 1000])
def test_runs_are_whole_utterances_of_one_speaker(max_frames):
    recombiner = Recombiner(CORPUS, np.random.default_rng(6))
    by_frames = {said.mel.tobytes(): said for said in CORPUS}
    max_parts = 0
    for _ in range(40):
        run = recombiner.run(max_frames)
        begins = np.flatnonzero(run.mel[:, 1] == 0)
        parts = [by_frames[part.tobytes()] for part in np.split(run.mel, begins[1:])]
        assert {part.speaker for part in parts} == {run.speaker}
        assert run.words == tuple(word for part in parts for word in part.words)
        assert len(parts) == 1 or len(run.mel) <= max_frames
        max_parts = max(max_parts, len(parts))
    assert (max_parts > 1) == (max_frames > 1)
    assert max_parts <= 12


def test_an_excerpt_is_a_stretch_of_one_utterance_with_its_words():
    recombiner = Recombiner(CORPUS, np.random.default_rng(7))
    found = [recombiner.excerpt(3) for _ in range(200)]
    assert {len(u.words) for u in found} == {1, 2, 3}
    said = [u for u in CORPUS if u.spans]
    for excerpt in found:
        source = next(
            u for u in said if u.mel.tobytes().find(excerpt.mel.tobytes()) >= 0 and set(excerpt.words) <= set(u.words)
        )
        codes = excerpt.mel[:, 2].astype(int)
        codes_found = [code for before, code in zip([0, *codes], codes, strict=False) if code and code != before]
        assert codes_found == [word_code(word) for word in excerpt.words]
        assert excerpt.speaker == source.speaker
    assert {u.words for u in found} >= {("go",), ("go", "north", "a"), ("a", "b"), ("yes", "f", "g")}
