"""Models for the oracle tests, as NeMo's objects and as imported bundles, and audio in random requests.

The models are the random ones of `nemo_specs.SPECS` and, where the variable PENSTOCK_ORACLE_NEMO names a .nemo file,
that one with real speech. Each is built once a process.
"""

import json
import math
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from nemo.collections.asr.models import ASRModel

from benchmarks.nemo_models import Greedy, build_model, decode, mel_float64
from benchmarks.nemo_specs import EOU_SPEC, FINE_TUNES, MARKS_SPEC, PROMPT_SPECS, SAMPLE_RATE_HZ, SPECS, float_signals
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.results.words import Token

AN4 = Path(__file__).parents[2] / "data" / "an4"
MAX_REQUEST_SAMPLES = 25 * SAMPLE_RATE_HZ

_REAL_NEMO = os.environ.get("PENSTOCK_ORACLE_NEMO")
_REAL = "real_speech"
_workspace = tempfile.TemporaryDirectory(prefix="penstock-oracle-")


@dataclass(frozen=True)
class OracleModel:
    """One model on both sides, and signals on which its greedy output does not hang on rounding errors."""

    name: str
    model: ASRModel
    checkpoint: Checkpoint
    signals: tuple[np.ndarray, ...]

    @property
    def contexts(self) -> tuple[AttentionContext, ...]:
        """All contexts of the checkpoint."""
        return self.checkpoint.config.encoder.contexts

    def mel(self, samples: np.ndarray) -> torch.Tensor:
        """NeMo's log-mel of the whole signal, [N, F]."""
        with torch.no_grad():
            mel, length = self.model.preprocessor(
                input_signal=torch.from_numpy(samples)[None], length=torch.tensor([len(samples)])
            )
        return mel[0, :, : int(length[0])].T

    def mel_float64(self, samples: np.ndarray) -> torch.Tensor:
        """Log-mel computed in float64, with NeMo's float32 constants."""
        return mel_float64(self.model, samples)

    def encode_mel(self, mel: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        """NeMo's encoder output [T, D] for log-mel [N, F], offline."""
        self.model.encoder.set_default_att_context_size(list(context))
        with torch.no_grad():
            encoded, length = self.model.encoder(audio_signal=mel.T[None], length=torch.tensor([len(mel)]))
        return encoded[0, :, : int(length[0])].T

    def heads_input(self, samples: np.ndarray, context: AttentionContext, prompts: list[int]) -> list[torch.Tensor]:
        """Input of NeMo's heads [T, D] from one signal for each of `prompts`, offline and in one batch."""
        self.model.encoder.set_default_att_context_size(list(context))
        count = len(prompts)
        with torch.no_grad():
            encoded, lengths = self.model(
                input_signal=torch.from_numpy(samples).expand(count, -1).contiguous(),
                input_signal_length=torch.tensor([len(samples)] * count),
                prompt_indices=torch.tensor(prompts),
            )
        return [row[:, : int(length)].T for row, length in zip(encoded, lengths, strict=True)]

    def decode(self, samples: np.ndarray, context: AttentionContext) -> Greedy:
        """NeMo's greedy output, offline and alone in its batch."""
        return decode(self.model, self.encode_mel(self.mel(samples), context))


MODEL_NAMES = (*(spec.name for spec in SPECS), *([_REAL] if _REAL_NEMO else []))


@cache
def oracle_model(name: str) -> OracleModel:
    """The model called `name`."""
    if name == _REAL:
        return _real_model(Path(_REAL_NEMO))
    spec = next(spec for spec in (*SPECS, *PROMPT_SPECS, EOU_SPEC, MARKS_SPEC, *FINE_TUNES) if spec.name == name)
    signals = float_signals()
    model = build_model(spec, _directory(), signals)
    path = _directory() / f"{name}.nemo"
    model.save_to(str(path))
    return OracleModel(name, model, import_nemo(path, _directory() / name), tuple(signals.values()))


@cache
def speech() -> tuple[np.ndarray, ...]:
    """The utterances of tests/data/an4."""
    lines = (AN4 / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    paths = [AN4 / json.loads(line)["audio_filepath"] for line in lines]
    return tuple(soundfile.read(path, dtype="float32")[0] for path in paths)


def long_speech(seconds: float) -> np.ndarray:
    """The utterances one after another, in several orders, until they last `seconds`."""
    generator = random.Random(0)
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < seconds * SAMPLE_RATE_HZ:
        parts += generator.sample(speech(), len(speech()))
    return np.concatenate(parts)


class Request(NamedTuple):
    """Samples `begin` .. `end` of one stream."""

    stream: int
    begin: int
    end: int
    is_start: bool
    is_end: bool


def random_batches(lengths_samples: list[int], streams_at_once: int, seed: int) -> Iterator[list[Request]]:
    """Batches of requests, one per stream: streams of mixed ages, requests of no or one sample up to the whole signal.

    Some streams end with their last samples, others with an empty request.
    """
    generator = random.Random(seed)
    waiting, live = list(range(len(lengths_samples))), []
    position: dict[int, int] = {}  # of the streams that have started
    while waiting or live:
        while waiting and len(live) < streams_at_once and (not live or generator.random() < 0.5):
            live.append(waiting.pop(0))
        batch = []
        for stream in [stream for stream in live if generator.random() < 0.8]:
            begin, length = position.get(stream, 0), lengths_samples[stream]
            end = min(begin + _random_size(generator, length), length)
            is_end = end == length and generator.random() < 0.5
            batch.append(Request(stream, begin, end, stream not in position, is_end))
            position[stream] = end
            if is_end:
                live.remove(stream)
        if batch:
            yield batch


def _random_size(generator: random.Random, length_samples: int) -> int:
    """0 .. the whole signal, small ones as likely as large ones."""
    largest = min(length_samples, MAX_REQUEST_SAMPLES)
    return int(math.exp(generator.uniform(0.0, math.log(largest + 2)))) - 1


def _directory() -> Path:
    return Path(_workspace.name)


def _real_model(path: Path) -> OracleModel:
    model = ASRModel.restore_from(str(path), map_location="cpu").eval()
    model.preprocessor.featurizer.dither = 0.0
    return OracleModel(_REAL, model, import_nemo(path, _directory() / _REAL), speech())


def assert_greedy(found: Sequence[Token], expected: Greedy) -> None:
    """Same labels, frames and, of a TDT model, durations."""
    assert [token.id for token in found] == expected.tokens
    assert [token.timestamp for token in found] == expected.timestamps
    if expected.durations:
        assert [token.duration for token in found] == expected.durations
