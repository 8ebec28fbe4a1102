"""What a benchmark of decoders decodes, and with what: encoder output of streams of equal length, and a model.

Knows no decoder.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from penstock.benchmarking.random_transducer import ENCODER_FRAME_MS, SIZES, RandomTransducer
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import PenstockError
from penstock.features import FeatureExtractor, LogMel
from penstock.stages.features import chunk_geometry

RANDOM_CONTEXT = AttentionContext(70, 13)
"""Where none is asked for."""


class Subject(NamedTuple):
    """One model with its streams."""

    name: str
    checkpoint: Checkpoint | RandomTransducer
    context: AttentionContext
    stream_s: float
    """Audio of each stream."""
    encoded: torch.Tensor
    """[B, T, D] float32, encoder output of the most streams; fewer streams are the first rows."""
    encode: Callable[[int], object] | None
    """Encodes the first so many streams chunk by chunk, from log-mel; None without an encoder."""
    note: str
    """What the streams are."""


def random_subject(
    kind: str, size: str, batch: int, seconds: float, context: AttentionContext | None, device: str
) -> Subject:
    """Random weights and random encoder output; without an encoder."""
    source, context = RandomTransducer(kind, SIZES[size]), context or RANDOM_CONTEXT
    encoder_frames = max(1, round(1000.0 * seconds / ENCODER_FRAME_MS))
    encoded = source.frames(batch, encoder_frames).to(device)
    stream_s = encoder_frames * ENCODER_FRAME_MS / 1000.0
    note = "random weights, random encoder output; no encoder, so no total and no share"
    return Subject(f"{kind}, {size}", source, context, stream_s, encoded, None, note)


def bundle_subject(
    name: str, checkpoint: Checkpoint, context: AttentionContext | None, streams: np.ndarray, device: str, note: str
) -> Subject:
    """A checkpoint's encoder over `streams` [B, samples] float32.

    PenstockError if they are too short for one encoder frame.
    """
    config = checkpoint.config
    context = config.encoder.select_context(context)
    recording = _EncoderRun(checkpoint, context, streams, device)
    stream_s = streams.shape[1] / config.features.sample_rate_hz
    return Subject(name, checkpoint, context, stream_s, recording.encode(len(streams)), recording.encode, note)


class _EncoderRun:
    """The same chunks of log-mel through the encoder again and again."""

    def __init__(self, checkpoint: Checkpoint, context: AttentionContext, streams: np.ndarray, device: str):
        batch, config = len(streams), checkpoint.config
        tensors = checkpoint.tensors("features.")
        log_mel = LogMel(
            config.features,
            tensors["features.window"].to(device),
            tensors["features.mel_filterbank"].to(device),
        )
        extractor = FeatureExtractor(log_mel, chunk_geometry(config, context), batch, torch.device(device))
        for slot in range(batch):
            extractor.open(slot)
        chunks = extractor.extract(list(range(batch)), list(streams), [True] * batch)
        if not len(chunks[0].mel):
            raise PenstockError(f"the streams have {streams.shape[1]} samples, too few for one encoder frame")
        self._mel = torch.stack([stream.mel for stream in chunks], dim=1)  # [C, B, N, F]
        self._slots = torch.arange(batch, device=device)
        self._encoder = StreamingEncoder(checkpoint, context, batch, device)
        whole, last = self._mel.shape[2], chunks[0].last_valid_mel_frames
        self._valid = [torch.full((batch,), whole, device=device) for _ in self._mel]
        self._valid[-1].fill_(last)
        factor = config.encoder.subsampling_factor
        self._encoder_frames = (len(self._mel) - 1) * whole // factor + -(-last // factor)

    @torch.inference_mode()
    def encode(self, batch: int) -> torch.Tensor:
        """[batch, T, D]"""
        slots = self._slots[:batch]
        self._encoder.open(slots)
        turns = zip(self._mel, self._valid, strict=True)
        frames = [self._encoder.step(slots, mel[:batch], valid[:batch]).frames for mel, valid in turns]
        return torch.cat(frames, dim=1)[:, : self._encoder_frames].float()
