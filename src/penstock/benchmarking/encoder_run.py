"""The same chunks of log-mel through an encoder again and again. Knows no decoder and no clock."""

from typing import NamedTuple

import numpy as np
import torch

from penstock.benchmarking.random_encoder import RandomEncoder
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import PenstockError
from penstock.features import FeatureExtractor, LogMel
from penstock.stages.features import chunk_geometry


class MelStreams(NamedTuple):
    """What B streams of equal length are for the encoder, on the device."""

    chunks: torch.Tensor
    """[C, B, N, F] float32"""
    last_valid_mel_frames: int
    """Of the last chunk; the others are whole."""


def log_mel(checkpoint: Checkpoint, context: AttentionContext, streams: np.ndarray, device: str) -> MelStreams:
    """Of `streams` [B, samples] float32; PenstockError if they are too short for one encoder frame."""
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
    return MelStreams(torch.stack([stream.mel for stream in chunks], dim=1), chunks[0].last_valid_mel_frames)


def random_mel(encoder: RandomEncoder, batch: int, encoder_frames: int, device: str) -> MelStreams:
    """As much as makes `encoder_frames` in every stream."""
    (context,), factor = encoder.config.encoder.contexts, encoder.config.encoder.subsampling_factor
    whole = context.chunk_encoder_frames
    chunks = -(-encoder_frames // whole)
    mel = encoder.mel(chunks, batch, factor * whole)
    return MelStreams(mel.to(device), factor * (encoder_frames - (chunks - 1) * whole))


class EncoderRun:
    """An encoder with its input."""

    def __init__(self, checkpoint: Checkpoint | RandomEncoder, context: AttentionContext, mel: MelStreams, device: str):
        self._mel = mel.chunks
        count, batch, whole, _ = self._mel.shape
        self._slots = torch.arange(batch, device=device)
        self._encoder = StreamingEncoder(checkpoint, context, batch, device)
        self._valid = [torch.full((batch,), whole, device=device) for _ in range(count)]
        self._valid[-1].fill_(mel.last_valid_mel_frames)
        factor = checkpoint.config.encoder.subsampling_factor
        self._encoder_frames = (count - 1) * whole // factor + -(-mel.last_valid_mel_frames // factor)

    @torch.inference_mode()
    def encode(self, batch: int) -> torch.Tensor:
        """The first `batch` streams -> [batch, T, D]."""
        slots = self._slots[:batch]
        self._encoder.open(slots)
        turns = zip(self._mel, self._valid, strict=True)
        frames = [self._encoder.step(slots, mel[:batch], valid[:batch]).frames for mel, valid in turns]
        return torch.cat(frames, dim=1)[:, : self._encoder_frames].float()
