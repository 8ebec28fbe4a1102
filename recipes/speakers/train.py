"""Trains a small speaker model on mixtures of recordings, and writes a bundle for `--speakers`.

    python -m recipes.speakers.train --train an4/train.jsonl --out build/speakers [--steps 2500]

Manifests are those of recipes/an4/prepare.py (audio_filepath, speaker). Every tenth speaker is left out. It has the
network of `penstock.speakers`, which is trained as it is: its tensors are the parameters.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.config import FeatureConfig
from penstock.model.source_tensors import front_end_tensors, stored
from penstock.speakers.bundle import (
    CachePolicy,
    QueueSize,
    SpeakerConfig,
    StepSize,
    speaker_shapes,
    write_speaker_checkpoint,
)
from penstock.speakers.network import SpeakerNetwork
from recipes.speakers.mixtures import FACTOR, Mixer, MixtureBatch, MixtureConfig, Utterance, by_speaker
from recipes.training.batches import Recording, read_recordings

Tensors = dict[str, torch.Tensor]
FEATURES = FeatureConfig(16_000, 400, 160, 512, 80, 0.97, 2.0**-24)
CONFIG = SpeakerConfig(
    features=FEATURES, d_model=144, n_layers=4, n_heads=4, d_feed_forward=512, subsampling_factor=FACTOR, d_head=64,
    speakers=4, rope_theta=10_000.0, rotary_share=1.0,
    cache=CachePolicy(80, 1, 0.25, 0.05, 0.75, 1.5, 0.5), live_queue=QueueSize(100, 60), file_queue=QueueSize(20, 20),
    file_step=StepSize(200, 20),
    live_steps={"low_latency": StepSize(9, 4), "very_low_latency": StepSize(6, 2), "ultra_low_latency": StepSize(3, 1)},
)  # fmt: skip
WINDOWS = (24, 48, 96, 128, 160, 200, 240)
"""Encoder frames of a batch's windows."""
_BATCH_FRAMES = 3072
_VOICE_WEIGHT = 0.1


def new_tensors(config: SpeakerConfig, seed: int = 0) -> Tensors:
    """Tensors of `speaker_shapes`, those of the network random."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in speaker_shapes(config).items():
        if name.endswith("norm.weight") or name in ("norm_in.weight", "norm_out.weight"):
            tensors[name] = torch.ones(shape)
        elif len(shape) == 1 and name != "silence":
            tensors[name] = torch.zeros(shape)
        else:
            scale = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                scale /= math.sqrt(2 * config.n_layers)
            tensors[name] = torch.randn(shape, generator=generator) * scale
    tensors["head.out.bias"] -= 1.0
    return tensors | front_end_tensors(config.features)


class _Network(SpeakerNetwork):
    """Shows what its first layers compute."""

    middle: torch.Tensor

    def __init__(self, config: SpeakerConfig, tensors: Tensors):
        super().__init__(config, tensors)
        layer = self._layers[config.n_layers // 2]
        step = layer.step

        def watched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.middle = x
            return step(x, *rest)

        layer.step = watched


def loss_of(
    config: SpeakerConfig, tensors: Tensors, batch: MixtureBatch, voices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean binary cross entropy over frames and speakers; cross entropy of `voices`.

    voices: [V, D], which the first half of the network is taught to tell from each other.
    """
    network = _Network(config, tensors)
    rows, frames = batch.is_silence.shape
    embedded = network.embed(batch.mel.flatten(0, 1)).view(rows, frames, -1)
    embedded = torch.where(batch.is_silence.unsqueeze(2), network.silence, embedded)
    logits = network(embedded, torch.full((rows,), frames))
    loss = F.binary_cross_entropy_with_logits(logits, batch.speaks)
    share = batch.speaks.view(rows, frames, FACTOR, -1).mean(dim=2)  # [B, T, K]
    is_alone = (share.sum(dim=2) > 0.7) & (share.amax(dim=2) == share.sum(dim=2))
    own = batch.voices.gather(1, share.argmax(dim=2))[is_alone]
    found = F.layer_norm(network.middle.view(rows, frames, -1)[is_alone], voices.shape[1:])
    return loss, F.cross_entropy(found @ voices.t(), own)


def conditioner(mixer: Mixer, frames: int = 2000) -> torch.Tensor:
    """A matrix [8 F, 8 F] that makes the directions of stacked log-mel frames equally strong, weak ones less so.

    The embedding is learned after it and stored as one product: level and tilt outweigh all else in log-mel by far.
    """
    mel = mixer.batch(frames // 50, 50).mel
    stacked = mel.reshape(-1, FACTOR * mel.shape[2]).double()
    values, vectors = torch.linalg.eigh(stacked.t() @ stacked / len(stacked))
    return ((vectors * (values.clamp_min(0) + 1.0) ** -0.5) @ vectors.t()).float()


def train(
    config: SpeakerConfig,
    tensors: Tensors,
    mixer: Mixer,
    steps: int,
    peak_rate: float = 1.5e-3,
    batch_frames: int = _BATCH_FRAMES,
    report: Callable[[int, tuple[float, float], Tensors], None] = lambda step, losses, average: None,
) -> Tensors:
    """Trains `tensors`; returns an average of their last values. report: called after each step
    with its number from 0, its losses and the average."""
    voices = torch.randn(mixer.voices, config.d_model, generator=torch.Generator().manual_seed(2))
    voices = (voices * config.d_model**-0.5).requires_grad_()
    names = [name for name in tensors if not name.startswith("features.")]
    for name in names:
        tensors[name].requires_grad_()
    matrices, vectors = ([tensors[n] for n in names if (tensors[n].ndim > 1) == matrix] for matrix in (True, False))
    matrices.append(voices)
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))
    condition = conditioner(mixer)
    average = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    random, warm_up = np.random.default_rng(1), min(150, steps // 5)
    for step in range(steps):
        rate = peak_rate * min((step + 1) / warm_up, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        frames = int(random.choice(WINDOWS))
        conditioned = _conditioned(tensors, condition)
        loss, voice_loss = loss_of(config, conditioned, mixer.batch(max(batch_frames // frames, 1), frames), voices)
        (loss + _VOICE_WEIGHT * voice_loss).backward()
        torch.nn.utils.clip_grad_norm_([*matrices, *vectors], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        share = 1 - min(0.995, (step + 1) / (step + 10))
        for name in names:
            average[name].lerp_(tensors[name].detach(), share)
        report(step, (float(loss.detach()), float(voice_loss.detach())), _conditioned(average, condition))
    return _conditioned(average, condition)


def _conditioned(tensors: Tensors, condition: torch.Tensor) -> Tensors:
    return tensors | {"embedding.weight": tensors["embedding.weight"] @ condition}


def divided(recordings: list[Recording]) -> tuple[list[Recording], list[Recording]]:
    """Divides recordings: to train with, and of every tenth speaker."""
    left_out = sorted({recording.speaker for recording in recordings})[5::10]
    parts: tuple[list[Recording], list[Recording]] = [], []
    for recording in recordings:
        parts[recording.speaker in left_out].append(recording)
    return parts


@functools.cache
def log_mel_of() -> WindowMel:
    """The front end."""
    tensors = new_tensors(CONFIG)
    return WindowMel(LogMel(FEATURES, tensors["features.window"], tensors["features.mel_filterbank"]))


def with_features(recordings: list[Recording]) -> dict[str, list[Utterance]]:
    """The log-mel of recordings, and where they have speech, by speaker."""
    log_mel = log_mel_of()
    return by_speaker([(each.speaker, log_mel(torch.from_numpy(each.samples)).numpy()) for each in recordings])


def save(directory: Path, tensors: Tensors, source: dict[str, str]) -> None:
    """Writes the bundle, in float16."""
    directory.mkdir(parents=True, exist_ok=True)
    halves = {name: stored("the model", name, tensor, half=True, copy=False) for name, tensor in tensors.items()}
    write_speaker_checkpoint(directory, CONFIG, halves, source)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="manifest")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started, tensors = time.process_time(), new_tensors(CONFIG)
    kept, left_out = divided(read_recordings(options.train))
    mixer = Mixer(with_features(kept), MixtureConfig(), np.random.default_rng(0))
    print(f"{len({r.speaker for r in kept})} speakers; left out: {', '.join(sorted({r.speaker for r in left_out}))}")
    points: list[tuple[float, float]] = []

    def report(step: int, losses: tuple[float, float], average: Tensors) -> None:
        points.append(losses)
        if (step + 1) % 50 == 0:
            spent_min = (time.process_time() - started) / 60
            loss, voice_loss = np.mean(points[-50:], axis=0)
            print(f"step {step + 1}: {loss:.4f}, voices {voice_loss:.3f}, {spent_min:.1f} min of CPU", flush=True)
        if (step + 1) % 250 == 0 or step + 1 == options.steps:
            save(options.out, average, {"recipe": "recipes/speakers", "steps": str(step + 1)})

    train(CONFIG, tensors, mixer, options.steps, options.learning_rate, report=report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
