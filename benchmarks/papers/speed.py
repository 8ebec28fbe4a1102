"""Random models of the papers' shapes: streams of equal length, with about as many labels as in speech."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.papers.runner import Row, Streams, entries_of, measured
from benchmarks.papers.settings import Settings
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import (
    ENCODER_FRAME_MS,
    ENCODERS,
    RandomCtc,
    RandomEncoder,
    RandomTransducer,
    TransducerSizes,
)
from benchmarks.results import progress
from benchmarks.systems import CTC, WHOLE, Chunk, Selection, System, Unavailable, split_chunks
from penstock.encoder.window.encoder import WindowEncoder


class Shape(NamedTuple):
    """Sizes of a published model."""

    encoder: str
    """A key of `ENCODERS`."""
    transducer: TransducerSizes


SHAPES = {
    "114M": Shape("large", TransducerSizes(512, 640, 1024)),
    "0.6B": Shape("xlarge", TransducerSizes(1024, 640, 1024)),
    "1.1B": Shape("xxlarge", TransducerSizes(1024, 640, 1024)),
}
"""FastConformer L, and the encoders of Parakeet 0.6B and 1.1B."""


class RandomWindows:
    """The encoder of an offline model with random weights, and log-mel of `batch` recordings."""

    def __init__(self, shape: str, batch: int, encoder_frames: int, device: str):
        source = RandomEncoder(ENCODERS[SHAPES[shape].encoder], None, device=device)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        self._encoder = WindowEncoder(source, device, dtype)
        mel_frames = source.config.encoder.subsampling_factor * encoder_frames
        self._mels = list(source.mel(1, batch, mel_frames)[0])

    def encode(self, batch: int) -> list[torch.Tensor]:
        """The frames of the first recordings."""
        return self._encoder.encode(self._mels[:batch])


class RandomRun:
    """The streams of one random head."""

    def __init__(self, settings: Settings, kind: str, shape: str, batches: tuple[int, ...], windows: RandomWindows):
        """kind: of `random_models.KINDS`, or `CTC`."""
        self._settings, self._batches, self._windows = settings, batches, windows
        self._case = {"kind": kind, "shape": shape}
        sizes = SHAPES[shape].transducer
        self._source = RandomCtc(sizes) if kind == CTC else RandomTransducer(kind, sizes)
        self._frames = encoder_frames(settings)
        self._encoded = self._source.frames(max(batches), self._frames).to(settings.device)

    def systems(self, decoders: tuple[str, ...], beam: int = 1) -> list[System | Unavailable]:
        """This project's and, where the run has them, NeMo's, over whole recordings."""
        settings = self._settings
        selection = Selection(
            decoders, (beam,), (WHOLE,), settings.device, max(self._batches), self._frames, settings.kernels
        )
        found = list(penstock_systems(self._source, selection))
        if settings.with_nemo and decoders != (CTC,):
            from benchmarks.nemo_decoders import nemo_systems

            found += [one for one in nemo_systems(self._source, selection) if one.variant.span == WHOLE]
        return found

    def rows(self, systems: list[System | Unavailable]) -> Iterator[Row]:
        """Each system at each batch size, with the encoder."""
        for batch in self._batches:
            progress(f"{self._case}: batch {batch}")
            chunks: list[Chunk] = split_chunks(self._encoded[:batch], self._frames)
            entries, rows = entries_of(systems, {**self._case, "batch": batch}, [chunks])
            audio_s = batch * self._frames * ENCODER_FRAME_MS / 1000
            streams = Streams(audio_s, partial(self._windows.encode, batch))
            yield from [*measured(entries, streams, self._settings.rounds, self._settings.device), *rows]


def encoder_frames(settings: Settings) -> int:
    """Of each stream."""
    return max(1, round(1000 * settings.stream_s / ENCODER_FRAME_MS))
