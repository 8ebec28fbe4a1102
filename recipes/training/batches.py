"""Utterances for training, read from manifests, and endless batches drawn from several sources of them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from penstock.evaluation import manifest
from penstock.frontend.audio_file import AudioSource
from recipes.training.augmentation import GENTLE, AugmentationConfig, Augmenter

SAMPLE_RATE_HZ = 16_000
MOST_JOINED = 4
PAUSE_FRAMES = (20, 200)
"""Mel frames between joined utterances."""
ENDPOINT_FRAMES = 80
"""Mel frames of a pause after which the decoder starts anew, as in docs/endpointing.md."""
PADDING_FRAMES = (100, 6000)
"""Mel frames of silence around a padded row, both sides together."""
_ENCODER_FRAME = 8
"""In mel frames."""
_POOL = 96
"""Rows drawn and sorted by length together."""


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
    """Reads a NeMo manifest and its audio files, or parts of them. Without a speaker every file counts as one.

    Raises ManifestError or AudioError.
    """
    with closing(AudioSource(SAMPLE_RATE_HZ)) as source:
        return [
            Recording(
                source.read(utterance.part),
                tuple(utterance.reference.lower().split()),
                utterance.speaker or str(utterance.audio),
            )
            for utterance in manifest.read_manifest(path, has_parts=True)
        ]


class Batch(NamedTuple):
    """B rows of frames with S utterances: one per row, unless some were joined."""

    mel: torch.Tensor
    """[B, F, N] float32, zeros after a row's end as from the network's front end."""
    mel_counts: torch.Tensor
    """[B] int64"""
    labels: torch.Tensor
    """[S, U] int64"""
    label_counts: torch.Tensor
    """[S] int64"""
    spans: torch.Tensor | None = None
    """[S, 3] int64: row, first encoder frame and the frame after the last; the last of a row may reach beyond it. None
    where every row is an utterance."""


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
        is_normalized: bool = False,
        joined: float = 0.0,
    ):
        """frames: mel frames per batch, padding included; is_normalized: give the model `normalized` frames; joined:
        share of rows with two to four utterances."""
        self.sources = sources
        """May be changed at any time."""
        self._augmenter = augmenter
        self._encode = encode
        self._random = random
        self._frames = frames
        self._is_normalized = is_normalized
        self._joined = joined
        self.masks = True
        """Whether SpecAugment is applied."""
        self.padded = 0.0
        """Share of rows in silence."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            pool = sorted((self._draw() for _ in range(_POOL)), key=lambda item: len(item.mel))
            groups: list[list[_Row]] = []
            group: list[_Row] = []
            for item in pool:
                if group and len(item.mel) * (len(group) + 1) > self._frames:
                    groups.append(group)
                    group = []
                group.append(item)
            groups.append(group)
            for i in self._random.permutation(len(groups)):
                yield _collate(groups[i])

    def _draw(self) -> "_Row":
        while True:
            count = int(self._random.integers(2, MOST_JOINED + 1)) if self._random.random() < self._joined else 1
            row = self._join([self._draw_utterance() for _ in range(count)])
            if 16 <= len(row.mel) <= self._frames and all(part.fits() for part in row.parts):
                break
        is_padded = self._random.random() < self.padded
        if is_padded:
            row = self._pad(row)
        mel = self._augmenter.add_noise(row.mel)
        if self._is_normalized:
            mel = normalized(mel)
        if is_padded:
            row = self._cut(row, mel)
            mel = row.mel
        if self.masks:
            for begin, end in row.speech:
                mel[begin:end] = self._augmenter.mask(mel[begin:end], float(mel[begin:end].mean()))
        return row._replace(mel=mel)

    def _draw_utterance(self) -> Utterance:
        weights = np.array([source.weight for source in self.sources])
        return self.sources[self._random.choice(len(self.sources), p=weights / weights.sum())].draw()

    def _join(self, utterances: list[Utterance]) -> "_Row":
        """One utterance, or several with pauses between. A long pause is an endpoint: what follows is another part."""
        mels: list[np.ndarray] = []
        words: list[str] = []
        speech, parts, begin, at = [], [], 0, 0

        def end_part(end: int) -> None:
            nonlocal begin, words
            parts.append(_Part(begin // _ENCODER_FRAME, end // _ENCODER_FRAME, self._encode(" ".join(words))))
            begin, words = end, []

        for utterance in utterances:
            if mels:
                pause = int(self._random.integers(*PAUSE_FRAMES))
                mels.append(self._augmenter.pause(pause))
                if pause >= ENDPOINT_FRAMES:
                    end_part(at + int(self._random.integers(ENDPOINT_FRAMES, pause + 1)))
                at += pause
            mels.append(self._augmenter.speaker(utterance.mel))
            speech.append((at, at + len(mels[-1])))
            words += utterance.words
            at += len(mels[-1])
        end_part(at + _ENCODER_FRAME)  # the row's end cuts it
        return _Row(np.concatenate(mels), speech, parts)

    def _pad(self, row: "_Row") -> "_Row":
        """The row in silence of 1 to 60 s."""
        frames = int(np.exp(self._random.uniform(*np.log(PADDING_FRAMES))))
        before = int(self._random.integers(frames // _ENCODER_FRAME + 1)) * _ENCODER_FRAME
        silence = self._augmenter.pause(frames)
        return row.moved(np.concatenate([silence[:before], row.mel, silence[before:]]), before)

    def _cut(self, row: "_Row", mel: np.ndarray) -> "_Row":
        """Keeps a random part of the silence: a row that was normalized with a minute of it stays short."""
        begin, end = row.speech[0][0], row.speech[-1][1]
        room = max(0, self._frames - (end - begin))
        first = begin - int(self._random.integers(min(begin, room) // _ENCODER_FRAME + 1)) * _ENCODER_FRAME
        room -= begin - first
        last = end + int(self._random.integers(min(len(mel) - end, room) + 1))
        return row.moved(mel[first:last], -first)


class _Part(NamedTuple):
    """Part of a row that the decoder recognizes from its initial state."""

    begin: int
    end: int
    """Encoder frames."""
    labels: list[int]

    def fits(self) -> bool:
        """True if its frames are enough for its labels."""
        return self.end - self.begin - 1 >= 0.5 * len(self.labels)


class _Row(NamedTuple):
    """One augmented utterance, or several."""

    mel: np.ndarray
    """[N, F] float32"""
    speech: list[tuple[int, int]]
    """Mel frames [begin, end) of each utterance."""
    parts: list[_Part]

    def moved(self, mel: np.ndarray, frames: int) -> "_Row":
        """The row with frames [N, F] before and after its own, which come `frames` later, whole encoder frames."""
        shift = frames // _ENCODER_FRAME
        begins = [0, *(part.begin + shift for part in self.parts[1:])]
        ends = [*(part.end + shift for part in self.parts[:-1]), len(mel) // _ENCODER_FRAME + 1]
        parts = [_Part(a, b, part.labels) for a, b, part in zip(begins, ends, self.parts, strict=True)]
        return _Row(mel, [(a + frames, b + frames) for a, b in self.speech], parts)


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


def _collate(group: list[_Row]) -> Batch:
    parts = [(place, part) for place, row in enumerate(group) for part in row.parts]
    mels = pad_sequence([torch.from_numpy(row.mel).float() for row in group], batch_first=True)
    labels = pad_sequence([torch.tensor(part.labels, dtype=torch.int64) for _, part in parts], batch_first=True)
    spans = torch.tensor([(place, part.begin, part.end) for place, part in parts])
    return Batch(
        mels.transpose(1, 2).contiguous(),
        torch.tensor([len(row.mel) for row in group]),
        labels,
        torch.tensor([len(part.labels) for _, part in parts]),
        spans if len(parts) > len(group) else None,
    )
