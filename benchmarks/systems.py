"""Systems under test: what all of them have in common.

Those of this project are in penstock_decoders.py, NeMo's in nemo_decoders.py.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.workload import FusedStreams
from penstock.kernels.capability import FUSED, TORCH

PENSTOCK, NEMO = "penstock", "nemo"
PRECOMPUTED, EACH_TIME = "precomputed", "each time"
CHUNKS, WHOLE = "chunks", "whole"
LABEL_LOOPING, FRAME_LOOPING, ALSD, AES = "label-looping", "frame-looping", "alsd", "aes"
BOOSTED, LM = "boosted", "lm"
CTC, CTC_BEAM = "ctc", "ctc_beam"
DECODERS = (LABEL_LOOPING, FRAME_LOOPING, ALSD, AES)
_DECODING_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)


@dataclass(frozen=True)
class Variant:
    """What distinguishes one line of the result from the others."""

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
        """Decodes B streams from start to end, results on the host included. This is what is timed."""

    @abstractmethod
    def labels(self, decoded: Any) -> list[list[int]]:
        """The labels of each stream from the result of `decode`; not timed."""


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
    """Which systems to set up, and for which device and sizes."""

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
