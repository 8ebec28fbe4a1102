"""Systems under test, what all of them have in common, and the streams that they decode.

Those of this project are in penstock_decoders.py, NeMo's in nemo_decoders.py. Streams have equal length; heads have
random weights.
"""

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.random_models import ENCODER_FRAME_MS, TRANSDUCERS, RandomTransducer, SyntheticTokenizer
from penstock.kernels.capability import FUSED, TORCH
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import TokenPhrases, merge_phrases, tokenize_phrases
from penstock.scoring.fusion import Fusion, FusionStates
from penstock.scoring.ngram.lm import NgramLm

PHRASES_PER_STREAM = 100
FAINT_BOOST = 0.001
"""With random weights. It leaves the labels as they are without boosting, so that the same work is compared."""
_MEMORY_BYTES = DEFAULT_DECODING.phrase_memory_mib * 2**20
PENSTOCK, NEMO = "penstock", "nemo"
PRECOMPUTED, EACH_TIME = "precomputed", "each time"
CHUNKS, WHOLE = "chunks", "whole"
LABEL_LOOPING, FRAME_LOOPING, ALSD, AES = "label-looping", "frame-looping", "alsd", "aes"
BOOSTED = "boosted"
CTC = "ctc"
DECODERS = (LABEL_LOOPING, FRAME_LOOPING, ALSD, AES)
_DECODING_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)


class Workload(NamedTuple):
    """One random head with its streams."""

    checkpoint: RandomTransducer
    stream_s: float
    """Audio seconds of each stream."""
    encoded: torch.Tensor
    """[B, T, D] float32, random encoder output of the largest batch; a smaller batch is its first rows."""


def random_workload(kind: str, size: str, batch: int, seconds: float, device: str) -> Workload:
    """kind: of `random_models.KINDS`, or `FACTORIZED`; size: a key of `TRANSDUCERS`."""
    source = RandomTransducer(kind, TRANSDUCERS[size])
    encoder_frames = max(1, round(1000.0 * seconds / ENCODER_FRAME_MS))
    encoded = source.frames(batch, encoder_frames).to(device)
    return Workload(source, encoder_frames * ENCODER_FRAME_MS / 1000.0, encoded)


class FusedStreams:
    """Streams with external scores, which `fusion` makes."""

    fusion: Fusion
    _starts: FusionStates

    def start(self, batch: int) -> FusionStates:
        """States and weights of the first `batch` streams, [batch]."""
        return FusionStates(*(field[:batch].clone() for field in self._starts))


class GivenLmStreams(FusedStreams):
    """A language model with the same weight for each stream."""

    def __init__(self, lm: NgramLm, streams: int, weight: float, device: str):
        self.fusion = Fusion(lm)
        start = torch.full((streams,), lm.start_state, device=device)
        self._starts = FusionStates(start, torch.zeros_like(start), torch.full((streams,), weight, device=device))


class BoostedStreams(FusedStreams):
    """A different list of `PHRASES_PER_STREAM` synthetic phrases for each stream."""

    def __init__(self, source: RandomTransducer, streams: int, device: str):
        """Raises StreamError where the phrases exceed a server's memory for them."""
        tokenizer = SyntheticTokenizer(source.config.transducer.vocabulary_size)
        generator = random.Random(0)
        cache = PhraseCache(tokenizer, _MEMORY_BYTES, device)
        starts = [cache.acquire(_draw_phrases(tokenizer, generator)) for _ in range(streams)]
        self.fusion = Fusion(boost=cache.automaton)
        zeros = torch.zeros(streams, dtype=torch.int64, device=device)
        self._starts = FusionStates(zeros, torch.tensor(starts, device=device), zeros.float())


def _draw_phrases(tokenizer: SyntheticTokenizer, generator: random.Random) -> TokenPhrases:
    texts: dict[str, None] = {}
    while len(texts) < PHRASES_PER_STREAM:
        tokens = generator.choices(range(tokenizer.size), k=generator.randint(3, 8))
        text = " ".join(tokenizer.decode(tokens).split())
        if text and tokenizer.unknown not in tokenizer.encode(text):
            texts[text] = None
    return tokenize_phrases(merge_phrases((text, FAINT_BOOST) for text in texts), tokenizer)


@dataclass(frozen=True)
class Variant:
    """Key of a line in the result."""

    implementation: str
    """`PENSTOCK` or `NEMO`."""
    decoder: str
    driver: str
    """no_graphs, no_while_loops or full_graph; for NeMo no_graphs or graphs."""
    beam: int | None = None
    """None for greedy search."""
    projections: str = PRECOMPUTED
    """`PRECOMPUTED` once per chunk and label, or `EACH_TIME` for each pair that the joint scores."""
    span: str = CHUNKS
    """`CHUNKS` as in serving, or the `WHOLE` utterance at once."""
    kernels: str = TORCH
    """`TORCH` or `FUSED`."""
    has_lm: bool = False
    """True with the language model of `Selection.streams`."""

    def __str__(self) -> str:
        parts = [f"{self.implementation} {self.decoder}"]
        parts += [f"K={self.beam}"] if self.beam else []
        parts += ["unprojected"] if self.projections == EACH_TIME else []
        parts += [FUSED] if self.kernels == FUSED else []
        parts += ["LM"] if self.has_lm else []
        parts += [self.driver] if self.driver != "no_graphs" else []
        parts += ["whole"] if self.span == WHOLE else []
        return ", ".join(parts)


class Unavailable(NamedTuple):
    """A variant without figures."""

    variant: Variant
    reason: str


class Chunk(NamedTuple):
    """Encoder output of one step of B streams, on the device."""

    frames: torch.Tensor
    """[B, T, D] float32"""
    lengths: torch.Tensor
    """[B] int64, all T"""
    is_end: torch.Tensor
    """[B] bool, True in the last chunk"""


def split_chunks(encoded: torch.Tensor, chunk_encoder_frames: int) -> list[Chunk]:
    """Whole streams [B, T, D] -> contiguous chunks, the last one maybe shorter."""
    pieces = encoded.split(chunk_encoder_frames, dim=1)
    batch, device = len(encoded), encoded.device
    return [
        Chunk(
            piece.contiguous(),
            torch.full((batch,), piece.shape[1], device=device),
            torch.full((batch,), number == len(pieces) - 1, device=device),
        )
        for number, piece in enumerate(pieces)
    ]


class System(ABC):
    """A system under test: one decoder ready to run."""

    def __init__(self, variant: Variant):
        self.variant = variant

    @abstractmethod
    def decode(self, chunks: list[Chunk]) -> Any:
        """Decodes B streams from start to end, results on the host included. This is what is timed.

        Returns pieces of labels [B, M] with their lengths [B], or what `labels` of the system reads.
        """

    def labels(self, decoded: Any) -> list[list[int]]:
        """The labels of each stream from the result of `decode`; not timed."""
        streams: list[list[int]] = [[] for _ in decoded[0][1]]
        for labels, lengths in decoded:
            for stream, row, length in zip(streams, labels.tolist(), lengths.tolist(), strict=True):
                stream += row[:length]
        return streams


def setup_errors() -> tuple[type[Exception], ...]:
    """Errors of building and capturing a search that cost only its own figures.

    Called where they are caught. Does not import triton, which reads its environment on first import.
    """
    triton_errors = sys.modules.get("triton.errors")  # present once a kernel was made
    return (RuntimeError,) if triton_errors is None else (RuntimeError, triton_errors.TritonError)


def decoding_errors() -> tuple[type[Exception], ...]:
    """`setup_errors`, and what NeMo's decoders raise for what they do not support."""
    return (*_DECODING_ERRORS, *setup_errors())


class Selection(NamedTuple):
    """Systems to set up, and for which device and sizes."""

    decoders: Sequence[str]
    beams: Sequence[int]
    spans: Sequence[str]
    device: str
    max_batch: int
    chunk_encoder_frames: int
    kernels: Sequence[str] = (TORCH,)
    """Kernels of greedy search with precomputed projections; everything else runs on `TORCH`."""
    streams: FusedStreams | None = None
    """A language model that greedy search with precomputed projections, ALSD++ and AES++ use."""
