"""The joint written out in float64: all log-probabilities, by which any choice can be checked."""

from typing import NamedTuple

import torch

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class PlainScores(NamedTuple):
    """Log-probabilities of pairs, [N, W, ...]."""

    blank: torch.Tensor
    labels: torch.Tensor
    """[..., V]"""
    durations: torch.Tensor | None
    """[..., D]"""
    totals: torch.Tensor | None
    """[..., V], labels with extra scores."""


def plain_scores(weights, frames: torch.Tensor, predictions: torch.Tensor, extra=None) -> PlainScores:
    """frames: [N, W, J]; predictions: [N, J]; extra: [N, V]."""
    hidden = _ACTIVATIONS[weights.activation](frames.double() + predictions.double().unsqueeze(1))
    logits = hidden @ weights.weight.double() + weights.bias.double()
    split = weights.vocabulary_size + 1
    log_probs = logits[..., :split].log_softmax(-1)
    labels = log_probs[..., :-1]
    durations = logits[..., split:].log_softmax(-1) if logits.shape[-1] > split else None
    totals = None if extra is None else labels + extra.double().unsqueeze(1)
    return PlainScores(log_probs[..., -1], labels, durations, totals)
