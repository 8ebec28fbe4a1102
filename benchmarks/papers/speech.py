"""Recordings of a manifest, encoded by the bundled offline model, and language models of another manifest's texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.papers.settings import Settings
from benchmarks.results import ROOT
from benchmarks.systems import Chunk
from benchmarks.workload import GivenLmStreams
from penstock.errors import StreamError
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.results.results import StreamResult
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


class Speech:
    """What is decoded, longest recordings first, in batches of `BATCH`."""

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


def texts_of(results: Sequence[StreamResult | StreamError]) -> list[str]:
    """The texts of a recognizer's results; StreamError where there is none."""
    for result in results:
        if isinstance(result, StreamError):
            raise result
    return [result.text for result in results if isinstance(result, StreamResult)]


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
