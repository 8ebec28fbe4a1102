"""Synthetic speech, where a synthesizer is installed; its sentences, everywhere."""

import shutil
import subprocess

import numpy as np
import pytest
import soundfile

from recipes.an4.synthesis import MissingSynthesizerError, Synthesizer

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
