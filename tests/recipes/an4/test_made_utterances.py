"""Utterances recombined from one speaker's words; synthetic speech, where a synthesizer is installed."""

import shutil
import subprocess

import numpy as np
import pytest
import soundfile

from recipes.an4.made_utterances import MissingSynthesizerError, Recombiner, Synthesizer
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


def words_in(mel: np.ndarray) -> list[int]:
    """Codes of the words whose frames these are, a repeated one once."""
    codes = mel[:, 2].astype(int)
    return [code for before, code in zip([0, *codes], codes, strict=False) if code and code != before]


def test_recombined_words_are_one_speakers_frames_in_the_shape_of_a_sentence():
    recombiner = Recombiner(CORPUS, np.random.default_rng(5))
    shapes, speakers = {tuple(len(word) == 1 for word in said.words) for said in CORPUS}, set()
    for found in [recombiner.words() for _ in range(100)]:
        (speaker,) = set(found.mel[:, 0].astype(int))
        assert found.speaker == f"speaker {speaker}" and set(found.words) <= WORDS[speaker]
        assert {frame.tobytes() for frame in found.mel} <= frames_of(speaker)
        assert tuple(len(word) == 1 for word in found.words) in shapes
        # Two excerpts of one word without a pause between still have silent margins.
        assert words_in(found.mel) == [word_code(word) for word in found.words]
        speakers.add(speaker)
    assert speakers == {1, 2}  # nothing of the third is aligned


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
        assert words_in(excerpt.mel) == [word_code(word) for word in excerpt.words]
        assert excerpt.speaker == source.speaker
    assert {u.words for u in found} >= {("go",), ("go", "north", "a"), ("a", "b"), ("yes", "f", "g")}


SHAPES = [("go",), ("a", "b", "seven"), ("enter", "six")]


def test_without_a_synthesizer_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingSynthesizerError, match="espeak-ng or flite; install one, or ask for 0"):
        Synthesizer(SHAPES, np.random.default_rng(0))


def test_sentences_keep_the_shapes_and_the_quiet_around_them(monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        path = command[command.index("-w" if command[0] == "espeak-ng" else "-o") + 1]
        soundfile.write(path, np.full(1600, 0.5), 16_000)

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    synthesizer = Synthesizer(SHAPES, np.random.default_rng(0))
    recordings = [synthesizer.speak() for _ in range(60)]
    assert {command[0] for command in commands} == {"espeak-ng", "flite"}
    for recording in recordings:
        assert tuple(len(word) == 1 for word in recording.words) in {(False,), (True, True, False), (False, False)}
        loud = np.flatnonzero(recording.samples > 0.4)
        assert len(loud) == 1600 and np.ptp(loud) == 1599
        assert 800 <= loud[0] <= 8000 and 800 <= len(recording.samples) - loud[-1] - 1 <= 8000
    assert len({recording.words for recording in recordings}) > len(SHAPES)
    assert {recording.words for recording in recordings} >= {("go",)}


@pytest.mark.parametrize("program", ["espeak-ng", "flite"])
def test_the_synthesizer_speaks(monkeypatch, program):
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    monkeypatch.setattr(shutil, "which", lambda name: found if name == program else None)
    recording = Synthesizer(SHAPES, np.random.default_rng(1)).speak()
    assert recording.samples.std() > 0.01 and len(recording.samples) > 4000
