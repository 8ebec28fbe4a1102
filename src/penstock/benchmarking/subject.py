"""What a benchmark of decoders decodes, and with what: encoder output of streams of equal length, and a model.

Knows no decoder.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from penstock.benchmarking.encoder_run import EncoderRun, log_mel, random_mel
from penstock.benchmarking.random_encoder import ENCODERS, NO_ENCODER, RandomEncoder
from penstock.benchmarking.random_transducer import ENCODER_FRAME_MS, SIZES, RandomTransducer
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext, EncoderConfig

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
    encoder: EncoderConfig | None
    """Of that which `encode` runs."""
    note: str
    """What the streams are."""


class RandomSizes(NamedTuple):
    """Of a random model."""

    transducer: str
    """One of `SIZES`."""
    encoder: str = NO_ENCODER
    """One of `ENCODERS`, or `NO_ENCODER`."""


def random_subject(
    kind: str, sizes: RandomSizes, batch: int, seconds: float, context: AttentionContext | None, device: str
) -> Subject:
    """Random weights and random encoder output. What the encoder makes is not decoded: it is there for its time.

    CheckpointError for a context that no encoder can have, if there is to be one.
    """
    context = context or RANDOM_CONTEXT
    encoder = None if sizes.encoder == NO_ENCODER else RandomEncoder(ENCODERS[sizes.encoder], context)
    source = RandomTransducer(kind, SIZES[sizes.transducer])
    encoder_frames = max(1, round(1000.0 * seconds / ENCODER_FRAME_MS))
    encoded = source.frames(batch, encoder_frames).to(device)
    stream_s = encoder_frames * ENCODER_FRAME_MS / 1000.0
    name = f"{kind}, {sizes.transducer}"
    if encoder is None:
        note = "random weights, random encoder output; no encoder, so no total and no share"
        return Subject(name, source, context, stream_s, encoded, None, None, note)
    run = EncoderRun(encoder, context, random_mel(encoder, batch, encoder_frames, device), device)
    note = f"random weights, random encoder output; encoder timed: {sizes.encoder}, random weights too"
    return Subject(name, source, context, stream_s, encoded, run.encode, encoder.config.encoder, note)


def bundle_subject(
    name: str, checkpoint: Checkpoint, context: AttentionContext | None, streams: np.ndarray, device: str, note: str
) -> Subject:
    """A checkpoint's encoder over `streams` [B, samples] float32.

    PenstockError if they are too short for one encoder frame.
    """
    config = checkpoint.config
    context = config.encoder.select_context(context)
    run = EncoderRun(checkpoint, context, log_mel(checkpoint, context, streams, device), device)
    stream_s = streams.shape[1] / config.features.sample_rate_hz
    encoded = run.encode(len(streams))
    return Subject(name, checkpoint, context, stream_s, encoded, run.encode, config.encoder, note)
