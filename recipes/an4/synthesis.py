"""Synthetic audio: speech from espeak-ng and flite (system packages), and sounds without speech."""

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


def sound_effect(random: np.random.Generator, seconds: float = 6.0) -> np.ndarray:
    """[n] float32 samples of a random kind, between -60 and -10 dB."""
    time_s = np.arange(int(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    kinds = (_colored_noise, _hum, _melody, _chirps, _clicks, _bursts)
    sound = kinds[random.integers(len(kinds))](time_s, random)
    if random.random() < 0.3:
        sound = sound + 0.3 * _colored_noise(time_s, random)
    level = 10 ** (random.uniform(-60, -10) / 20)
    return (sound / max(np.sqrt(np.mean(sound**2)), 1e-9) * level).clip(-1, 1).astype(np.float32)


def _colored_noise(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    spectrum = np.fft.rfft(random.normal(size=len(time_s)))
    hertz = np.fft.rfftfreq(len(time_s), 1 / SAMPLE_RATE_HZ)
    tilt = (np.maximum(hertz, 20) / 1000) ** -random.uniform(0, 1.2)
    sway = 1 + 0.7 * np.sin(2 * np.pi * random.uniform(0.1, 6) * time_s + random.uniform(0, 6))
    return np.fft.irfft(spectrum * tilt, len(time_s)) * sway


def _harmonics(time_s: np.ndarray, hertz: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A tone with overtones; hertz [n] is its frequency over time."""
    phase = 2 * np.pi * np.cumsum(hertz) / SAMPLE_RATE_HZ
    decay = random.uniform(0.6, 2.5)
    return sum(np.sin(k * phase + random.uniform(0, 6)) * k**-decay for k in range(1, 13) if k * hertz.max() < 7900)


def _hum(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    wobble = 1 + random.uniform(0, 0.05) * np.sin(2 * np.pi * random.uniform(0.2, 8) * time_s)
    return _harmonics(time_s, random.uniform(40, 300) * wobble, random)


def _melody(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    total = np.zeros_like(time_s)
    for _ in range(random.integers(1, 4)):  # voices
        note_s = random.uniform(0.12, 0.8)
        notes = 110 * 2 ** (random.integers(0, 48, int(time_s[-1] / note_s) + 1) / 12)
        index = (time_s / note_s).astype(int)
        envelope = np.exp(-random.uniform(0.5, 8) * (time_s % note_s))
        vibrato = 1 + random.uniform(0, 0.02) * np.sin(2 * np.pi * 5.5 * time_s)
        total += _harmonics(time_s, notes[index] * vibrato, random) * envelope
    return total


def _chirps(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    every_s = random.uniform(0.15, 1.5)
    local = time_s % every_s
    low, high = sorted(random.uniform(500, 7000, 2))
    sweep = low + (high - low) * np.abs(np.sin(np.pi * random.uniform(1, 12) * local))
    return _harmonics(time_s, sweep, random) * np.exp(-random.uniform(2, 12) * local)


def _clicks(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    every = int(SAMPLE_RATE_HZ * random.uniform(0.1, 1.2))
    train = np.zeros_like(time_s)
    train[:: max(every, 1)] = random.uniform(0.5, 1, len(train[:: max(every, 1)]))
    ring = np.exp(-np.arange(1600) / random.uniform(20, 400)) * np.sin(np.arange(1600) * random.uniform(0.1, 2.5))
    return np.convolve(train, ring)[: len(time_s)] + 1e-3 * random.normal(size=len(time_s))


def _bursts(time_s: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Short noisy or tonal bursts with silence in between, like barks and knocks."""
    total = 1e-3 * random.normal(size=len(time_s))
    for begin in np.cumsum(random.exponential(random.uniform(0.3, 1.5), 20)):
        where = time_s - begin
        envelope = np.where(where > 0, np.exp(-np.maximum(where, 0) * random.uniform(5, 30)), 0.0)
        tone = _harmonics(time_s, np.full_like(time_s, random.uniform(120, 900)), random)
        total += envelope * (tone + random.uniform(0, 2) * random.normal(size=len(time_s)))
    return total
