"""Training batches drawn without end from several sources, utterances of like length together."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from penstock.training.augmentation import Augmenter
from penstock.training.corpus import Utterance


class Batch(NamedTuple):
    """B utterances."""

    mel: torch.Tensor
    """[B, F, N] float32, zeros behind an utterance's end as the network's own front end has them."""
    mel_counts: torch.Tensor
    """[B] int64"""
    labels: torch.Tensor
    """[B, U] int64"""
    label_counts: torch.Tensor
    """[B] int64"""


class Source(NamedTuple):
    """Where utterances come from, and how often."""

    weight: float
    draw: Callable[[], Utterance]


class BatchMaker:
    """Draws utterances from sources, augments them and puts them together."""

    def __init__(
        self,
        sources: list[Source],
        augmenter: Augmenter,
        encode: Callable[[str], list[int]],
        random: np.random.Generator,
        frames: int = 3200,
        pool: int = 96,
    ):
        """frames: mel frames a batch, padding included; pool: utterances sorted by length at a time."""
        self.sources = sources
        """May be changed at any time."""
        self._augmenter = augmenter
        self._encode = encode
        self._random = random
        self._frames = frames
        self._pool = pool
        self.masks = True
        """Whether SpecAugment is applied."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            pool = sorted((self._draw() for _ in range(self._pool)), key=lambda item: len(item[0]))
            groups, group = [], []
            for item in pool:
                if group and len(item[0]) * (len(group) + 1) > self._frames:
                    groups.append(group)
                    group = []
                group.append(item)
            groups.append(group)
            for i in self._random.permutation(len(groups)):
                yield _collate(groups[i])

    def _draw(self) -> tuple[np.ndarray, list[int]]:
        weights = np.array([source.weight for source in self.sources])
        source = self.sources[self._random.choice(len(self.sources), p=weights / weights.sum())]
        while True:
            utterance = source.draw()
            mel = self._augmenter.add_noise(self._augmenter.speaker(utterance.mel))
            labels = self._encode(" ".join(utterance.words))
            if len(mel) <= self._frames and len(mel) >= 16 and len(mel) / 8 > 0.5 * len(labels):
                break
        if self.masks:
            mel = self._augmenter.mask(mel, float(mel.mean()))
        return mel, labels


def _collate(group: list[tuple[np.ndarray, list[int]]]) -> Batch:
    longest = max(len(mel) for mel, _ in group)
    mels = np.zeros((len(group), group[0][0].shape[1], longest), np.float32)
    labels = np.zeros((len(group), max(len(label) for _, label in group)), np.int64)
    for row, (mel, label) in enumerate(group):
        mels[row, :, : len(mel)] = mel.T
        labels[row, : len(label)] = label
    counts = [torch.tensor([len(item[i]) for item in group]) for i in (0, 1)]
    return Batch(torch.from_numpy(mels), counts[0], torch.from_numpy(labels), counts[1])
