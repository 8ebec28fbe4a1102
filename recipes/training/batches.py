"""Utterances for training, read from manifests, and endless batches drawn from several sources of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from penstock.evaluation import manifest
from penstock.frontend.audio_file import read_audio
from recipes.training.augmentation import GENTLE, AugmentationConfig, Augmenter

SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True)
class WordSpan:
    """A word and its mel frames [begin, end)."""

    word: str
    begin: int
    end: int


@dataclass(frozen=True)
class Utterance:
    """One recording."""

    mel: np.ndarray
    """[N, F] float32, natural logarithm, not normalized."""
    words: tuple[str, ...]
    speaker: str
    spans: tuple[WordSpan, ...] = ()
    """One per word, in order; empty if the words could not be aligned."""


@dataclass(frozen=True)
class Recording:
    """Samples and words of one line of a manifest."""

    samples: np.ndarray
    """[n] float32 at 16 kHz, mono."""
    words: tuple[str, ...]
    speaker: str


def read_recordings(path: Path) -> list[Recording]:
    """Reads a NeMo manifest and its audio files. Without a speaker every file counts as one.

    Raises ManifestError or AudioError.
    """
    return [
        Recording(
            read_audio(utterance.audio, SAMPLE_RATE_HZ),
            tuple(utterance.reference.lower().split()),
            utterance.speaker or str(utterance.audio),
        )
        for utterance in manifest.read_manifest(path)
    ]


class Batch(NamedTuple):
    """B utterances."""

    mel: torch.Tensor
    """[B, F, N] float32, zeros after an utterance's end as from the network's front end."""
    mel_counts: torch.Tensor
    """[B] int64"""
    labels: torch.Tensor
    """[B, U] int64"""
    label_counts: torch.Tensor
    """[B] int64"""
    references: list[str]
    """The words of each utterance; empty without speech."""


def normalized(mel: np.ndarray) -> np.ndarray:
    """Frames [N, F] with mean 0 and deviation 1 in each mel bin, N >= 2, as NeMo's `per_feature`."""
    return ((mel - mel.mean(axis=0)) / (mel.std(axis=0, ddof=1) + 1e-5)).astype(np.float32)


class Source(NamedTuple):
    """A source of utterances; it is drawn from in proportion to its weight."""

    weight: float
    draw: Callable[[], Utterance]


class BatchMaker:
    """Draws utterances from sources, augments them, and batches utterances of similar length."""

    def __init__(
        self,
        sources: list[Source],
        augmenter: Augmenter,
        encode: Callable[[str], list[int]],
        random: np.random.Generator,
        frames: int = 3200,
        pool: int = 96,
        is_normalized: bool = False,
    ):
        """frames: mel frames per batch, padding included; pool: utterances drawn and sorted by length together;
        is_normalized: give the model `normalized` frames."""
        self.sources = sources
        """May be changed at any time."""
        self._augmenter = augmenter
        self._encode = encode
        self._random = random
        self._frames = frames
        self._pool = pool
        self._is_normalized = is_normalized
        self.masks = True
        """Whether SpecAugment is applied."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            pool = sorted((self._draw() for _ in range(self._pool)), key=lambda item: len(item.mel))
            groups: list[list[_Example]] = []
            group: list[_Example] = []
            for item in pool:
                if group and len(item.mel) * (len(group) + 1) > self._frames:
                    groups.append(group)
                    group = []
                group.append(item)
            groups.append(group)
            for i in self._random.permutation(len(groups)):
                yield _collate(groups[i])

    def _draw(self) -> "_Example":
        weights = np.array([source.weight for source in self.sources])
        source = self.sources[self._random.choice(len(self.sources), p=weights / weights.sum())]
        while True:
            utterance = source.draw()
            mel = self._augmenter.add_noise(self._augmenter.speaker(utterance.mel))
            reference = " ".join(utterance.words)
            labels = self._encode(reference)
            if len(mel) <= self._frames and len(mel) >= 16 and len(mel) / 8 > 0.5 * len(labels):
                break
        if self._is_normalized:
            mel = normalized(mel)
        if self.masks:
            mel = self._augmenter.mask(mel, float(mel.mean()))
        return _Example(mel, labels, reference)


class _Example(NamedTuple):
    """One augmented utterance."""

    mel: np.ndarray
    """[N, F] float32"""
    labels: list[int]
    reference: str


class Curriculum:
    """Sets sources and augmentation of a batch maker, before and after labels are aligned with frames.

    A Transducer with random weights first learns label frequencies, and stays there until it finds which frames belong
    to which label. That is found in easy speech, hardly augmented: synthetic voices, few words, no masks.
    """

    def __init__(self, maker: BatchMaker, augmenter: Augmenter, early: list[Source], all_sources: list[Source]):
        """early: the sources until there is an alignment."""
        self._maker = maker
        self._augmenter = augmenter
        self._early = early
        self._all = all_sources

    def set_stage(self, is_aligned: bool, masks: bool) -> None:
        """Applies to the next draws. masks: whether SpecAugment is applied."""
        self._maker.sources = self._all if is_aligned else self._early
        self._augmenter.config = AugmentationConfig() if is_aligned else GENTLE
        self._maker.masks = masks


def _collate(group: list[_Example]) -> Batch:
    longest = max(len(item.mel) for item in group)
    mels = np.zeros((len(group), group[0].mel.shape[1], longest), np.float32)
    labels = np.zeros((len(group), max(len(item.labels) for item in group)), np.int64)
    for row, item in enumerate(group):
        mels[row, :, : len(item.mel)] = item.mel.T
        labels[row, : len(item.labels)] = item.labels
    return Batch(
        torch.from_numpy(mels),
        torch.tensor([len(item.mel) for item in group]),
        torch.from_numpy(labels),
        torch.tensor([len(item.labels) for item in group]),
        [item.reference for item in group],
    )
