"""Mixtures of several speakers and who speaks in them when, made of recordings of one speaker each.

A mixture is made on log-mel frames: turns of changed voices, with pauses or a little overlap, in which the speakers are
numbered in the order in which they first speak. Some have the layout of a step of a stream: a speaker cache first.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from recipes.training.augmentation import decibels, smooth_curve, stretch, warp_matrix

FACTOR = 8
"""Log-mel frames of an encoder frame."""


class Utterance(NamedTuple):
    """A recording of one speaker."""

    mel: np.ndarray
    """[N, F] float32."""
    speaks: np.ndarray
    """[N] float32, 1 where there is speech."""


class Mixture(NamedTuple):
    """Some turns."""

    mel: np.ndarray
    """[N, F] float32."""
    speaks: np.ndarray
    """[N, K] float32."""
    voices: np.ndarray
    """[K] int64, a number of each speaker in a third of the range of `MixtureConfig.warp`."""


class MixtureBatch(NamedTuple):
    """Windows of T encoder frames."""

    mel: torch.Tensor
    """[B, 8 T, F]."""
    speaks: torch.Tensor
    """[B, 8 T, K]."""
    is_silence: torch.Tensor
    """[B, T] bool: places of a speaker cache without a frame."""
    voices: torch.Tensor
    """[B, K] int64, see `Mixture`."""


@dataclass(frozen=True)
class MixtureConfig:
    """Shares and ranges of what is drawn."""

    speakers: int = 4
    """The most of a mixture."""
    counts: tuple[float, ...] = (0.1, 0.6, 0.2, 0.1)
    """Share of mixtures with one speaker, with two, and so on."""
    pause_s: float = 1.0
    """The longest between two turns."""
    overlap: float = 0.1
    """Share of turns that begin up to 0.5 s before the one before has ended."""
    tempo: tuple[float, float] = (0.9, 1.12)
    warp: tuple[float, float] = (0.86, 1.16)
    """Factor on the frequency axis: the length of the vocal tract."""
    color_db: float = 2.0
    level_db: tuple[float, float] = (-10.0, 6.0)
    noise: float = 0.5
    """Share of mixtures with stationary noise, 15 to 40 dB below their loudest frames."""
    cached: float = 0.35
    """Share of windows that begin with a speaker cache."""
    cache_frames: int = 80


def speech(mel: np.ndarray) -> np.ndarray:
    """[N] float32, 1 where a recording [N, F] has speech by its level; holes below 0.3 s are filled."""
    level = np.log(np.exp(mel[:, 3:]).sum(axis=1))
    quiet, loud = np.percentile(level, [8, 95])
    is_loud = level > quiet + max(0.35 * (loud - quiet), decibels(5.0))
    edges = np.flatnonzero(np.diff(np.pad(is_loud.astype(int), 1)))
    found = np.zeros(len(mel), np.float32)
    begin = end = -1000
    for start, stop in (*zip(edges[::2], edges[1::2], strict=True), (10**9, 10**9)):
        if start - end > 30:  # the run before has ended; clicks are left out
            if end - begin >= 8:
                found[max(begin - 3, 0) : end + 3] = 1
            begin = start
        end = stop
    return found


class _Voice(NamedTuple):
    """Changes to a speaker in one mixture."""

    tempo: float
    warp: np.ndarray
    """[F, F]."""
    curve: np.ndarray
    """[F], level and color."""
    third: int
    """Third of the range of warps, 0 .. 2."""


class Mixer:
    """Draws mixtures without end."""

    def __init__(self, utterances: dict[str, list[Utterance]], config: MixtureConfig, random: np.random.Generator):
        """utterances: by speaker."""
        self.config = config
        """May be changed at any time."""
        self._utterances, self._names, self._random = utterances, sorted(utterances), random

    @property
    def voices(self) -> int:
        """Numbers of `Mixture.voices`."""
        return 3 * len(self._names)

    def batch(self, rows: int, frames: int) -> MixtureBatch:
        """`rows` windows of `frames` encoder frames."""
        parts = [self._window(frames) for _ in range(rows)]
        return MixtureBatch(*(torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True)))

    def mixture(self, frames: int) -> Mixture:
        """Makes a mixture of `frames` log-mel frames."""
        config, random = self.config, self._random
        count = min(random.choice(len(config.counts), p=config.counts) + 1, len(self._names))
        names = random.choice(self._names, count, replace=False)
        voices = [self._voice() for _ in names]
        floor = random.uniform(-15.5, -11.0) + smooth_curve(len(voices[0].warp), random) * 0.5
        mel = np.repeat(floor[None], frames, 0).astype(np.float32)
        mel += random.normal(0, random.uniform(0, 0.5), mel.shape).astype(np.float32)
        speaks = np.zeros((frames, config.speakers), np.float32)
        numbers: dict[int, int] = {}
        at, last, turns = int(random.integers(60)), -1, 0
        share = random.dirichlet(np.full(count, 4.0))
        while at < frames:
            # 1) who, and what
            new = [i for i in range(count) if i != last]
            unheard = [i for i in new if i not in numbers]
            if unheard and (turns == 0 or random.random() < 0.6):
                new = unheard
            weights = share[new] / share[new].sum() if new else None
            who = int(random.choice(new, p=weights)) if new and random.random() < 0.9 else max(last, 0)
            utterance = self._changed(names[who], voices[who])
            # 2) where: after a pause, or a little before the other has ended
            if turns and who != last and random.random() < config.overlap:
                at = max(at - int(random.integers(5, 50)), 0)
            part = slice(at, at + len(utterance.mel))
            size = len(mel[part])
            mel[part] = np.logaddexp(mel[part], utterance.mel[:size])
            if utterance.speaks[:size].any():
                number = numbers.setdefault(who, len(numbers))
                speaks[part, number] = np.maximum(speaks[part, number], utterance.speaks[:size])
            at += len(utterance.mel) + int(random.integers(int(100 * config.pause_s) + 1))
            last, turns = who, turns + 1
        own = np.zeros(config.speakers, np.int64)
        for who, number in numbers.items():
            own[number] = voices[who].third * len(self._names) + self._names.index(names[who])
        order = arrival(speaks)
        return Mixture(self._noisy(mel), speaks[:, order], own[order])

    def _voice(self) -> _Voice:
        config, random, bins = self.config, self._random, next(iter(self._utterances.values()))[0].mel.shape[1]
        curve = smooth_curve(bins, random) * config.color_db + random.uniform(*config.level_db)
        lowest, highest = config.warp
        place = random.random()
        warp = warp_matrix(bins, lowest + place * (highest - lowest))
        return _Voice(random.uniform(*config.tempo), warp, np.float32(decibels(curve)), int(3 * place))

    def _changed(self, name: str, voice: _Voice) -> Utterance:
        found = self._utterances[name][self._random.integers(len(self._utterances[name]))]
        mel = stretch(found.mel, voice.tempo)
        speaks = stretch(found.speaks[:, None], voice.tempo)[:, 0].round()
        return Utterance(mel @ voice.warp + voice.curve, speaks)

    def _noisy(self, mel: np.ndarray) -> np.ndarray:
        config, random = self.config, self._random
        if random.random() >= config.noise:
            return mel
        curve = smooth_curve(mel.shape[1], random) * decibels(4.0) + np.linspace(0, random.uniform(-4, 1), mel.shape[1])
        noise = curve + random.normal(0, 0.6, mel.shape)
        gap = np.percentile(mel.max(axis=1), 95) - noise.max() - decibels(random.uniform(15.0, 40.0))
        return np.logaddexp(mel, noise + gap).astype(np.float32)

    def _window(self, frames: int) -> tuple[np.ndarray, ...]:
        config, random = self.config, self._random
        is_silence = np.zeros(frames, bool)
        if frames <= config.cache_frames or random.random() >= config.cached:
            mixture = self.mixture(frames * FACTOR)
            return mixture.mel, mixture.speaks, is_silence, mixture.voices
        # 1) a longer mixture, of whose past some frames of each speaker are kept
        past = int(config.cache_frames * random.uniform(1.0, 3.0))
        mixture = self.mixture((past + frames - config.cache_frames) * FACTOR)
        mel = mixture.mel.reshape(-1, FACTOR, mixture.mel.shape[1])
        speaks = mixture.speaks.reshape(len(mel), FACTOR, -1)
        share = speaks[:past].mean(axis=1)  # [past, K]
        is_sure = (share > 0.5) & (share.sum(axis=1, keepdims=True) < 1.2)
        kept: list[int] = []
        limit = config.cache_frames // max(int(is_sure.any(axis=0).sum()), 1) - 1
        for number in range(config.speakers):
            candidates = np.flatnonzero(is_sure[:, number])
            chosen = random.choice(candidates, min(limit, len(candidates)), replace=False) if len(candidates) else []
            kept += [*sorted(chosen), past]  # then a place of silence
        # 2) in the order of the cache
        kept = (kept + [past] * config.cache_frames)[: config.cache_frames]
        order = np.array([*kept, *range(past, len(mel))])
        is_silence[: config.cache_frames] = order[: config.cache_frames] == past
        mel, speaks = mel[order], speaks[order]
        speaks[is_silence] = 0
        return mel.reshape(-1, mel.shape[2]), speaks.reshape(-1, speaks.shape[2]), is_silence, mixture.voices


def arrival(speaks: np.ndarray) -> np.ndarray:
    """The columns [K] of speaks [N, K] in the order of their first 1, those without last."""
    first = np.where(speaks.any(axis=0), speaks.argmax(axis=0), len(speaks))
    return np.argsort(first, kind="stable")


def by_speaker(utterances: list[tuple[str, np.ndarray]]) -> dict[str, list[Utterance]]:
    """Utterances of (speaker, log-mel [N, F]) that have speech, by speaker."""
    found = defaultdict(list)
    for speaker, mel in utterances:
        if (speaks := speech(mel)).any():
            found[speaker].append(Utterance(mel, speaks))
    return dict(found)
