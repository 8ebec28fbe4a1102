"""How a language model's score enters a Transducer's label and blank scores.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.3.
Knows the two equations and when hypotheses are pruned; no automaton, no search.
"""

import enum
from typing import NamedTuple

import torch


class BlankScoring(enum.Enum):
    """What a language model of weight w does to the two kinds of output."""

    LABELS_ONLY = "labels_only"
    """Equation 2: labels get w ln p_LM, blank nothing. Raises deletions as w grows."""
    BLANK_TOO = "blank_too"
    """Equation 3: labels get w ln((1 - p_blank) p_LM), blank w ln p_blank. Preserves the total probability."""


class Pruning(enum.Enum):
    """When a hypothesis's best labels are chosen."""

    EARLY = "early"
    """By the acoustic scores; the external scores are added to the chosen ones only."""
    LATE = "late"
    """By the sum; needs external scores of the whole vocabulary."""


class FusionStrategy(NamedTuple):
    """The paper's four strategies; its best one by default."""

    blank_scoring: BlankScoring = BlankScoring.BLANK_TOO
    pruning: Pruning = Pruning.LATE
    least_label_probability: float = 1e-6
    """1 - p_blank is taken to be at least this in equation 3."""


def label_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor, strategy: FusionStrategy) -> torch.Tensor:
    """What is added to every label of N outputs, beside the weighted label scores: w ln(1 - p_blank), or 0.

    blank_log_probs, lm_weights: [N]. Returns [N].
    """
    if strategy.blank_scoring is BlankScoring.LABELS_ONLY:
        return torch.zeros_like(blank_log_probs)
    label_probability = -torch.expm1(blank_log_probs)
    return lm_weights * label_probability.clamp(min=strategy.least_label_probability).log()


def blank_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor, strategy: FusionStrategy) -> torch.Tensor:
    """What is added to the blank of N outputs: w ln p_blank, or 0. Shapes as in `label_offset`."""
    if strategy.blank_scoring is BlankScoring.LABELS_ONLY:
        return torch.zeros_like(blank_log_probs)
    # A weight of 0 is no language model, even for an impossible blank.
    return torch.where(lm_weights == 0, 0.0, lm_weights * blank_log_probs)
