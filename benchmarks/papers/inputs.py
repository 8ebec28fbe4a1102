"""Inputs of decoders: random models of the papers' shapes, recordings of a manifest, language models of texts.

Streams of random models have equal length and about as many labels as speech. Recordings are encoded by the bundled
offline model.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.papers.runner import Row, Settings, Streams, entries_of, measured
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import (
    ENCODER_FRAME_MS,
    ENCODERS,
    RandomCtc,
    RandomEncoder,
    RandomTransducer,
    TransducerSizes,
)
from benchmarks.results import ROOT, progress
from benchmarks.systems import CTC, WHOLE, Chunk, GivenLmStreams, Selection, System, Unavailable, split_chunks
from penstock.encoder.window.encoder import WindowEncoder
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import Arpa, write_arpa
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.estimation.text import TextTokenizer
from penstock.scoring.ngram.io import NEMO_TOKEN_OFFSET, find_labels
from penstock.scoring.ngram.lm import NgramLm
from penstock.scoring.ngram.tables import build_tables
from recipes.training.encoded import FrozenEncoder

MODEL = ROOT / "models" / "an4-offline"
BATCH = 32
LM_ORDER, LM_WEIGHT = 4, 0.1


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
        """Penstock's systems and, where the run has them, NeMo's, over whole recordings."""
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
    """Encoder frames of each stream."""
    return max(1, round(1000 * settings.stream_s / ENCODER_FRAME_MS))


class Speech:
    """Encoder output of recordings, longest first, in batches of `BATCH`."""

    def __init__(self, settings: Settings):
        self.checkpoint = Checkpoint(MODEL)
        self.tokenizer = Tokenizer(self.checkpoint.tokenizer_path)
        self._device = settings.device
        utterances = sorted(read_manifest(settings.manifest, settings.recordings), key=lambda u: -u.audio_s)
        rate = self.checkpoint.config.features.sample_rate_hz
        self.audio = [read_audio(utterance.audio, rate) for utterance in utterances]
        self.references = [utterance.reference for utterance in utterances]
        self.audio_s = sum(map(len, self.audio)) / rate
        self._encoder = FrozenEncoder(self.checkpoint, None, self._device)
        self._mels = [self._encoder.log_mel(samples) for samples in self.audio]

    def encode(self) -> list[torch.Tensor]:
        """The encoder frames [T, D] of each recording."""
        return self._encoder.encode(self._mels)

    def batches(self) -> Iterator[list[Chunk]]:
        """Whole recordings as one chunk per batch."""
        frames = self.encode()
        for at in range(0, len(frames), BATCH):
            rows = frames[at : at + BATCH]
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self._device)
            lengths = torch.tensor([len(row) for row in rows], device=self._device)
            yield [Chunk(padded, lengths, torch.ones(len(rows), dtype=torch.bool, device=self._device))]


def texts(manifest: Path) -> list[str]:
    """The different texts of a manifest."""
    found: list[Utterance] = read_manifest(manifest)
    return list(dict.fromkeys(utterance.reference for utterance in found))


class PieceLm:
    """A language model of the model's pieces, of the texts of `Settings.train`."""

    def __init__(self, settings: Settings, train: Path):
        tokenizer = TextTokenizer(Checkpoint(MODEL).tokenizer_path)
        path = settings.work / "train.txt"
        path.write_text("\n".join(texts(train)) + "\n", encoding="utf-8")
        self.arpa: Arpa = build_lm(tokenizer.read([str(path)]), tokenizer.names, LM_ORDER).arpa
        self._labels = find_labels(self.arpa.words, tokenizer.names)
        self._settings, self._size = settings, len(tokenizer.names.pieces)

    def streams(self) -> GivenLmStreams:
        """The language model of `BATCH` streams."""
        lm = NgramLm(build_tables(self.arpa, self._labels, self._size), self._settings.device)
        return GivenLmStreams(lm, BATCH, LM_WEIGHT, self._settings.device)

    def write(self) -> Path:
        """Writes it as an ARPA file of pieces."""
        write_arpa(self.arpa, self._settings.work / "pieces.arpa")
        return self._settings.work / "pieces.arpa"

    def write_as_nemo(self) -> Path:
        """Writes it in NeMo's spelling of labels."""
        words = [
            word if label < 0 else chr(label + NEMO_TOKEN_OFFSET)
            for word, label in zip(self.arpa.words, self._labels.tolist(), strict=True)
        ]
        path = self._settings.work / "nemo.arpa"
        write_arpa(self.arpa._replace(words=words), path)
        return path
