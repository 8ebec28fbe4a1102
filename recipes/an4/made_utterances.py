"""Utterances beside those of the corpus: recombined from its aligned words, and synthetic speech.

Recombination follows "aligned data augmentation" (Lam et al., arXiv 2104.01393): a Transducer's prediction network
memorizes the few training sentences; words recombined in the sentence shapes of the corpus prevent that. Speech is of
espeak-ng and flite (system packages).
"""

import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from penstock.frontend.audio_file import read_audio
from recipes.training.batches import SAMPLE_RATE_HZ, Recording, Utterance

_MARGIN_FRAMES = 4
_Item = TypeVar("_Item")
_DIGITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero", "oh"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ESPEAK_ACCENTS = ("en-us", "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029")
_ESPEAK_VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7", "+f1", "+f2", "+f3", "+f4", "+f5")
_FLITE_VOICES = ("awb", "kal16", "rms", "slt")
# Spellings with which flite says the name of a single letter.
_FLITE_LETTERS = {"a": "ay", "e": "ee", "i": "eye", "o": "oh"}


@dataclass(frozen=True)
class _Piece:
    word: str
    mel: np.ndarray


class _Voice:
    """Utterances, words and pauses of one speaker."""

    def __init__(self, utterances: list[Utterance]):
        self.utterances = utterances
        self.words: dict[str, list[_Piece]] = defaultdict(list)
        self.pauses: list[np.ndarray] = []
        for utterance in utterances:
            self._cut(utterance)

    def _cut(self, utterance: Utterance) -> None:
        spans = utterance.spans
        for i, span in enumerate(spans):
            previous_end = spans[i - 1].end if i else 0
            next_begin = spans[i + 1].begin if i + 1 < len(spans) else len(utterance.mel)
            begin = max(span.begin - _MARGIN_FRAMES, (previous_end + span.begin) // 2)
            end = min(span.end + _MARGIN_FRAMES, (span.end + next_begin + 1) // 2)
            self.words[span.word].append(_Piece(span.word, utterance.mel[begin:end]))
        if spans and spans[0].begin > 3 * _MARGIN_FRAMES:
            self.pauses.append(utterance.mel[: spans[0].begin - _MARGIN_FRAMES])


class Recombiner:
    """Draws utterances of one speaker each."""

    def __init__(self, utterances: list[Utterance], random: np.random.Generator):
        """utterances: those without spans are only used whole."""
        self._random = random
        by_speaker = defaultdict(list)
        for utterance in utterances:
            by_speaker[utterance.speaker].append(utterance)
        self._voices = [_Voice(spoken) for spoken in by_speaker.values()]
        self._aligned = [utterance for utterance in utterances if utterance.spans]
        self._shapes = [utterance.words for utterance in utterances if utterance.words]

    def words(self) -> Utterance:
        """A sentence of the corpus in words of one speaker. A word that this speaker never spoke is replaced by one of
        its class (letter or other)."""
        random = self._random
        voice = _choose(self._random, [v for v in self._voices if v.words])
        wanted = _choose(self._random, self._shapes)
        pieces = [_choose(self._random, voice.words[self._known_word(voice, word)]) for word in wanted]
        mel = []
        if voice.pauses:
            mel.append(self._pause(voice, 60))
        for piece in pieces:
            mel.append(piece.mel)
            if voice.pauses and random.random() < 0.25:
                mel.append(self._pause(voice, 40))
        if voice.pauses:
            mel.append(self._pause(voice, 60))
        return Utterance(np.concatenate(mel), tuple(p.word for p in pieces), voice.utterances[0].speaker)

    def run(self, max_frames: int) -> Utterance:
        """Whole utterances of one speaker one after the other, up to a length; at least one."""
        voice = _choose(self._random, self._voices)
        chosen = [_choose(self._random, voice.utterances)]
        frames = len(chosen[0].mel)
        while len(chosen) < 12:
            further = _choose(self._random, voice.utterances)
            frames += len(further.mel)
            if frames > max_frames:
                break
            chosen.append(further)
        words = tuple(word for utterance in chosen for word in utterance.words)
        return Utterance(np.concatenate([u.mel for u in chosen]), words, chosen[0].speaker)

    def excerpt(self, max_words: int) -> Utterance:
        """One or a few words of an utterance, in its order, with the frames around them."""
        random = self._random
        utterance = _choose(self._random, self._aligned)
        spans = utterance.spans
        count = int(random.integers(1, min(max_words, len(spans)) + 1))
        first = int(random.integers(len(spans) - count + 1))
        end = first + count
        begin_frame = spans[first - 1].end if first else 0
        end_frame = spans[end].begin if end < len(spans) else len(utterance.mel)
        words = tuple(span.word for span in spans[first:end])
        return Utterance(utterance.mel[begin_frame:end_frame], words, utterance.speaker)

    def _known_word(self, voice: _Voice, word: str) -> str:
        if word in voice.words:
            return word
        same_class = [known for known in voice.words if (len(known) == 1) == (len(word) == 1)]
        return _choose(self._random, same_class or list(voice.words))

    def _pause(self, voice: _Voice, max_frames: int) -> np.ndarray:
        pause = _choose(self._random, voice.pauses)
        frames = self._random.integers(4, max(5, min(max_frames, len(pause)) + 1))
        begin = self._random.integers(max(1, len(pause) - frames + 1))
        return pause[begin : begin + frames]


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
        program = _choose(self._random, self._programs)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "speech.wav"
            voice, command = (self._espeak if program == "espeak-ng" else self._flite)(words, path)
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            samples = read_audio(path, SAMPLE_RATE_HZ)
        quiet = [np.zeros(int(self._random.uniform(0.05, 0.5) * SAMPLE_RATE_HZ), np.float32) for _ in range(2)]
        return Recording(np.concatenate([quiet[0], samples, quiet[1]]), words, voice)

    def _words(self) -> tuple[str, ...]:
        words = _choose(self._random, self._shapes)
        if self._random.random() < 0.5:
            return words
        return tuple(self._another(word) for word in words)

    def _another(self, word: str) -> str:
        if len(word) == 1:
            return _choose(self._random, _LETTERS)
        return _choose(self._random, _DIGITS) if word in _DIGITS else word

    def _espeak(self, words: tuple[str, ...], path: Path) -> tuple[str, list[str]]:
        voice = _choose(self._random, _ESPEAK_ACCENTS) + _choose(self._random, _ESPEAK_VARIANTS)
        text = ", ".join(" ".join(w.upper() if len(w) == 1 else w for w in group) for group in self._groups(words))
        speed, pitch = self._random.integers(110, 190), self._random.integers(15, 85)
        return voice, ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(path), text]

    def _flite(self, words: tuple[str, ...], path: Path) -> tuple[str, list[str]]:
        voice = _choose(self._random, _FLITE_VOICES)
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


def _choose(random: np.random.Generator, items: Sequence[_Item]) -> _Item:
    return items[random.integers(len(items))]
