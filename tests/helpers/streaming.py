"""Drives the streaming parts in tests: signals cut at random, streams of different ages side by side."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, EncoderConfig

NAN = float("nan")


class MelChunks(NamedTuple):
    """One row of `ChunkRows`: the chunks that the samples of one request completed."""

    mel: torch.Tensor
    last_valid_mel_frames: int
    covered_samples: int


def cut(total: int, sizes: int | random.Random, most: int = 4000) -> Iterator[slice]:
    """Neighbouring slices that cover `total`: of equal size, or of random sizes 0 .. most, mostly small."""
    start = 0
    while start < total:
        size = sizes if isinstance(sizes, int) else int(most ** sizes.random()) - (sizes.random() < 0.2)
        yield slice(start, start + size)
        start += size


def make_extractor(checkpoint: Checkpoint, context: AttentionContext, slots: int = 1) -> FeatureExtractor:
    """The front end of a checkpoint."""
    tensors = checkpoint.tensors("features.")
    config = checkpoint.config
    log_mel = LogMel(config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    return FeatureExtractor(log_mel, chunk_geometry(config, context), slots)


def extract(
    extractor: FeatureExtractor,
    slots: list[int],
    samples: list[np.ndarray],
    is_last: list[bool],
    is_first: list[bool] | None = None,
) -> list[MelChunks]:
    """The chunks of each row of samples."""
    lengths = np.array([len(part) for part in samples])
    first = np.array(is_first or [False] * len(slots))
    found = extractor.extract(np.array(slots), np.concatenate(samples), lengths, first, np.array(is_last))
    mels = found.mel.split(found.chunks.tolist())
    return list(map(MelChunks, mels, found.last_valid_mel_frames.tolist(), found.covered_samples.tolist()))


def real_frames(replies: list[MelChunks], virtual_mel_frames: int) -> torch.Tensor:
    """[N, F], the frames of a stream's replies without the virtual ones and without those after the end."""
    frames = []
    for mel, last_valid_mel_frames, _ in replies:
        behind_the_end = mel.shape[1] - last_valid_mel_frames if len(mel) else 0
        frames.append(mel.flatten(0, 1)[: mel.shape[0] * mel.shape[1] - behind_the_end])
    return torch.cat(frames)[virtual_mel_frames:]


def mel_chunks(
    mel: torch.Tensor, config: EncoderConfig, context: AttentionContext, filling: float = NAN
) -> list[tuple[torch.Tensor, int]]:
    """A whole signal's mel [N, F] as the chunks (mel, valid frames) of a stream; `filling` where there is no audio."""
    size = config.subsampling_factor * context.chunk_encoder_frames
    filler = torch.full((size, mel.shape[1]), filling)
    padded = torch.cat([filler[: config.subsampling_factor - 1], mel])
    count = -(-len(padded) // size) if len(mel) else 0
    padded = torch.cat([padded, filler])
    valid = len(mel) + config.subsampling_factor - 1
    return [(padded[i * size : (i + 1) * size], min(size, valid - i * size)) for i in range(count)]


def encode_streams(
    encoder: StreamingEncoder, chunks: dict[int, list[tuple[torch.Tensor, int]]], chance: random.Random | None = None
) -> dict[int, torch.Tensor]:
    """Slot -> encoder frames [T, D] of all its chunks, many slots in one step.

    With `chance` each step takes some of the slots, in any order, so that streams of all ages meet.
    """
    encoder.open(torch.tensor(list(chunks)))
    found: dict[int, list[torch.Tensor]] = {slot: [torch.zeros(0, encoder.config.d_model)] for slot in chunks}
    position = dict.fromkeys(chunks, 0)
    while waiting := [slot for slot in chunks if position[slot] < len(chunks[slot])]:
        slots = chance.sample(waiting, chance.randint(1, len(waiting))) if chance else waiting
        mel, valid = zip(*(chunks[slot][position[slot]] for slot in slots), strict=True)
        encoded = encoder.step(torch.tensor(slots), torch.stack(mel), torch.tensor(valid))
        for slot, frames, count in zip(slots, encoded.frames, encoded.valid_encoder_frames.tolist(), strict=True):
            found[slot].append(frames[:count])
            position[slot] += 1
    return {slot: torch.cat(frames) for slot, frames in found.items()}


def after_speech(audio: np.ndarray) -> Iterator[np.ndarray]:
    """A recording at 16 kHz up to its last 10 ms within 20, 25, 30 dB of the loudest; with noise, also after it."""
    power = np.square(audio[: len(audio) // 160 * 160]).reshape(-1, 160).mean(1)
    noise = np.random.default_rng(0).standard_normal(len(audio) + 3200).astype(np.float32)
    for below_db, after_ms in ((20, 0), (25, 0), (30, 0), (25, 100), (25, 200)):
        end = 160 * ((power > power.max() * 10 ** (-below_db / 10)).nonzero()[0][-1] + 1)
        yield audio[:end]
        rms = np.sqrt(np.square(audio[:end]).mean())
        silence = np.zeros(16 * after_ms, np.float32)
        yield np.concatenate([audio[:end], silence]) + noise[: end + len(silence)] * rms * 10 ** (-15 / 20)
