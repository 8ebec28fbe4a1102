"""Trains a Transducer head on the frames of a frozen encoder, after its internal language model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from penstock.adaptation.ilm import IlmTraining, InternalLm, Sentence, TrainedIlm, every_tenth_held_out, train_ilm
from recipes.training.encoded import EncodedBatch
from recipes.training.head import TransducerHead
from recipes.training.trainer import WeightAverage

Loss = Callable[[EncodedBatch], torch.Tensor]
"""The scalar loss of a batch."""


@dataclass(frozen=True)
class HeadTraining:
    """Hyperparameters of one run."""

    steps: int
    peak_learning_rate: float = 2e-3
    warm_up: float = 0.05
    """Share of the steps; then half a cosine to a hundredth of the peak."""
    weight_decay: float = 1e-2
    gradient_norm: float = 2.0
    trains_ilm: bool = False
    """False: the internal language model is frozen, its weights keep every bit."""
    averaged: float = 0.2
    """Share of the steps that the moving average of the weights is about. The average is the result."""


def pretrain_ilm(ilm: InternalLm, sentences: Sequence[Sentence], seed: int = 0) -> TrainedIlm:
    """Trains an internal language model by eq. 3, before its head is trained; every tenth sentence is held out."""
    return train_ilm(ilm, *every_tenth_held_out(sentences), IlmTraining(seed=seed))


def transducer_loss_of(head: TransducerHead, ilm_weight: float = 0.0) -> Loss:
    """Eq. 1 + ilm_weight * eq. 3 of each utterance, divided by the root of its label count plus one, averaged over the
    batch.

    ilm_weight: 0 without an internal language model, else ValueError.
    """
    ilm = head.ilm
    if ilm_weight and ilm is None:
        raise ValueError(f"ilm_weight: {ilm_weight:g}; accepted: 0, the head has no internal language model")

    def loss(batch: EncodedBatch) -> torch.Tensor:
        found = head.losses(batch.encoded, batch.frame_counts, batch.labels, batch.label_counts)
        if ilm_weight and ilm is not None:
            found = found - ilm_weight * ilm.log_probability(batch.labels, batch.label_counts)
        return (found / (batch.label_counts + 1).sqrt()).mean()

    return loss


def train_head(
    head: TransducerHead,
    batches: Iterator[EncodedBatch],
    loss: Loss,
    config: HeadTraining,
    report: Callable[[int, float], None] = lambda step, value: None,
) -> None:
    """Trains the head's weights that require a gradient; it is left with their moving average, in evaluation mode.

    report: called with step and loss of each step. A step with a non-finite gradient is skipped.
    """
    if head.ilm is not None:
        head.ilm.requires_grad_(config.trains_ilm)
    trained = [p for p in head.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, betas=(0.9, 0.98), weight_decay=config.weight_decay)
    average = WeightAverage(head, 1 - 1 / max(config.averaged * config.steps, 1))
    head.train()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, config)
        optimizer.zero_grad(set_to_none=True)
        value = loss(next(batches))
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, config.gradient_norm)
        if bool(torch.isfinite(norm)):
            optimizer.step()
            average.update(head)
        report(step + 1, float(value.detach()))
    average.swap(head)
    head.eval()


def _learning_rate(step: int, config: HeadTraining) -> float:
    """Of the step with this number, from 0."""
    warm_up = config.warm_up * config.steps
    if step < warm_up:
        return config.peak_learning_rate * (step + 1) / (warm_up + 1)
    share = (step - warm_up) / max(config.steps - warm_up, 1)
    return config.peak_learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
