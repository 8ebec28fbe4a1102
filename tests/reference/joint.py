"""The joint written out in float64: the log-probability of everything, from which any choice can be judged."""

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


def plain_scores(weights, frame_rows: torch.Tensor, predictor_rows: torch.Tensor, extra=None) -> PlainScores:
    """frame_rows: [N, W, J]; predictor_rows: [N, J]; extra: [N, V]."""
    hidden = _ACTIVATIONS[weights.activation](frame_rows.double() + predictor_rows.double().unsqueeze(1))
    logits = hidden @ weights.weight.double() + weights.bias.double()
    split = weights.vocabulary_size + 1
    log_probs = logits[..., :split].log_softmax(-1)
    labels = log_probs[..., :-1]
    durations = logits[..., split:].log_softmax(-1) if logits.shape[-1] > split else None
    totals = None if extra is None else labels + extra.double().unsqueeze(1)
    return PlainScores(log_probs[..., -1], labels, durations, totals)
