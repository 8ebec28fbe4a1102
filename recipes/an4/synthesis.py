"""Synthetic speech, from espeak-ng and flite (system packages)."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from penstock.frontend.audio_file import read_audio
from recipes.training.batches import SAMPLE_RATE_HZ, Recording

_DIGITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero", "oh"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ESPEAK_ACCENTS = ("en-us", "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029")
_ESPEAK_VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7", "+f1", "+f2", "+f3", "+f4", "+f5")
_FLITE_VOICES = ("awb", "kal16", "rms", "slt")
# Spellings with which flite says the name of a single letter.
_FLITE_LETTERS = {"a": "ay", "e": "ee", "i": "eye", "o": "oh"}
_Item = TypeVar("_Item")


class MissingSynthesizerError(RuntimeError):
    """Neither espeak-ng nor flite is installed."""


class Synthesizer:
    """Speaks sentences in random voices."""

    def __init__(self, shapes: list[tuple[str, ...]], random: np.random.Generator):
        """shapes: transcripts; half of the time their letters and digits are replaced at random."""
        self._programs = [name for name in ("espeak-ng", "flite") if shutil.which(name)]
        if not self._programs:
            raise MissingSynthesizerError("synthetic utterances need espeak-ng or flite; install one, or ask for 0")
        self._shapes = shapes
        self._random = random

    def speak(self) -> Recording:
        """One utterance; its speaker is the voice."""
        words = self._words()
        program = self._choose(self._programs)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "speech.wav"
            voice, command = (self._espeak if program == "espeak-ng" else self._flite)(words, path)
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            samples = read_audio(path, SAMPLE_RATE_HZ)
        quiet = [np.zeros(int(self._random.uniform(0.05, 0.5) * SAMPLE_RATE_HZ), np.float32) for _ in range(2)]
        return Recording(np.concatenate([quiet[0], samples, quiet[1]]), words, voice)

    def _words(self) -> tuple[str, ...]:
        words = self._choose(self._shapes)
        if self._random.random() < 0.5:
            return words
        return tuple(self._another(word) for word in words)

    def _another(self, word: str) -> str:
        if len(word) == 1:
            return self._choose(_LETTERS)
        return self._choose(_DIGITS) if word in _DIGITS else word

    def _espeak(self, words: tuple[str, ...], path: Path) -> tuple[str, list[str]]:
        voice = self._choose(_ESPEAK_ACCENTS) + self._choose(_ESPEAK_VARIANTS)
        text = ", ".join(" ".join(w.upper() if len(w) == 1 else w for w in group) for group in self._groups(words))
        speed, pitch = self._random.integers(110, 190), self._random.integers(15, 85)
        return voice, ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(path), text]

    def _flite(self, words: tuple[str, ...], path: Path) -> tuple[str, list[str]]:
        voice = self._choose(_FLITE_VOICES)
        text = ", ".join(" ".join(_FLITE_LETTERS.get(w, w) for w in group) for group in self._groups(words))
        stretch = self._random.uniform(0.8, 1.3)
        command = ["flite", "-voice", voice, "--setf", f"duration_stretch={stretch:.2f}", "-t", text, "-o", str(path)]
        return f"flite-{voice}", command

    def _groups(self, words: tuple[str, ...]) -> list[list[str]]:
        """Splits the words at random places, where a pause is spoken."""
        groups: list[list[str]] = [[]]
        for word in words:
            if groups[-1] and self._random.random() < 0.2:
                groups.append([])
            groups[-1].append(word)
        return groups

    def _choose(self, items: Sequence[_Item]) -> _Item:
        return items[self._random.integers(len(items))]
