"""Fusion: a language model's score in a Transducer's label and blank scores.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.3.
"""

import enum
from typing import NamedTuple

import torch


class BlankScoring(enum.Enum):
    """The change that a language model of weight w makes to the scores of labels and of blank."""

    LABELS_ONLY = "labels_only"
    """Equation 2: w ln p_LM is added to labels, nothing to blank. Deletions grow with w."""
    BLANK_TOO = "blank_too"
    """Equation 3: w ln((1 - p_blank) p_LM) is added to labels, w ln p_blank to blank. The total stays 1."""


class Pruning(enum.Enum):
    """The scores by which the best labels of a hypothesis are chosen."""

    EARLY = "early"
    """The acoustic scores; the external scores are added to the chosen ones only."""
    LATE = "late"
    """The sum of acoustic and external scores; needs external scores of the whole vocabulary."""


class FusionStrategy(NamedTuple):
    """One of the paper's four strategies; by default its best one."""

    blank_scoring: BlankScoring = BlankScoring.BLANK_TOO
    pruning: Pruning = Pruning.LATE
    min_label_probability: float = 1e-6
    """Lower bound of 1 - p_blank in equation 3."""


def label_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor, strategy: FusionStrategy) -> torch.Tensor:
    """The term of every label of N outputs beside its weighted score: w ln(1 - p_blank), or 0.

    blank_log_probs, lm_weights: [N] float32, natural logarithm. Returns [N].
    """
    if strategy.blank_scoring is BlankScoring.LABELS_ONLY:
        return torch.zeros_like(blank_log_probs)
    label_probability = -torch.expm1(blank_log_probs)
    return lm_weights * label_probability.clamp(min=strategy.min_label_probability).log()


def blank_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor, strategy: FusionStrategy) -> torch.Tensor:
    """The term of the blank of N outputs: w ln p_blank, or 0. Shapes as in `label_offset`."""
    if strategy.blank_scoring is BlankScoring.LABELS_ONLY:
        return torch.zeros_like(blank_log_probs)
    # A weight of 0 adds nothing, even to an impossible blank.
    return torch.where(lm_weights == 0, 0.0, lm_weights * blank_log_probs)
