"""Shallow fusion: a language model and phrase boosting as one score per label. Independent of searches.

A language model of weight w changes scores by equation 3 of Grigoryan et al., "Pushing the limits of beam search
decoding for Transducer-based ASR models": labels by w ln((1 - p_blank) p_LM), blank by w ln p_blank. The total stays 1.
"""

from typing import NamedTuple

import torch

from penstock.scoring.automaton import AllTransitions, Automaton

MIN_LABEL_PROBABILITY = 1e-6
"""Lower bound of 1 - p_blank."""


def label_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor) -> torch.Tensor:
    """The term of every label of N outputs beside its weighted score: w ln(1 - p_blank).

    blank_log_probs, lm_weights: [N] float32, natural logarithm. Returns [N].
    """
    return lm_weights * (-torch.expm1(blank_log_probs)).clamp(min=MIN_LABEL_PROBABILITY).log()


def blank_offset(blank_log_probs: torch.Tensor, lm_weights: torch.Tensor) -> torch.Tensor:
    """The term of the blank of N outputs: w ln p_blank. Shapes as in `label_offset`."""
    # A weight of 0 adds nothing, even to an impossible blank.
    return torch.where(lm_weights == 0, 0.0, lm_weights * blank_log_probs)


class FusionStates(NamedTuple):
    """The automaton states of N hypotheses, and the weight that each one's stream chose."""

    lm_states: torch.Tensor
    """[N] int64; 0 where there is no language model."""
    boost_states: torch.Tensor
    """[N] int64; begins at the start of the stream's phrase list, or at `NO_PHRASES`."""
    lm_weights: torch.Tensor
    """[N] float32; 0 switches the language model off for a stream."""


class Fusion:
    """Sums the weighted scores of the automata present."""

    def __init__(
        self, lm: Automaton | None = None, boost: Automaton | None = None, is_neutral: torch.Tensor | None = None
    ):
        """Both over the same vocabulary of V labels.

        is_neutral: [V + 1] bool on their device, True for labels that score 0 and move no state; None for no such.
        """
        self._lm = lm
        self._boost = boost
        self._is_neutral = is_neutral

    @property
    def is_empty(self) -> bool:
        """True where there is no automaton."""
        return self._lm is None and self._boost is None

    def score_all(self, states: FusionStates, label_bonus: float = 0.0) -> "FusionTransitions":
        """Scores every label. ValueError for an empty fusion.

        label_bonus: added to each label's score by the language model, so that its weight scales both.
        """
        lm = None if self._lm is None else self._lm.score_all(states.lm_states)
        boost = None if self._boost is None else self._boost.score_all(states.boost_states)
        if lm is not None:
            scores = _weighted(states.lm_weights.unsqueeze(1), lm.scores)
            scores = scores if boost is None else scores + boost.scores
        elif boost is not None:
            scores = boost.scores
        else:
            raise ValueError("an empty fusion has no scores: check is_empty first")
        if label_bonus:
            scores = scores + label_bonus * states.lm_weights.unsqueeze(1)
        if self._is_neutral is not None:
            scores = scores.masked_fill(self._is_neutral[:-1], 0.0)
        return FusionTransitions(scores, states, lm, boost, self._is_neutral)

    def advance(self, states: FusionStates, labels: torch.Tensor) -> tuple[torch.Tensor, FusionStates]:
        """Scores [N] float32 of `labels` [N] int64, as in `score_all`, and the states after them."""
        total = torch.zeros_like(states.lm_weights)
        lm_states, boost_states = states.lm_states, states.boost_states
        if self._lm is not None:
            lm = self._lm.advance(states.lm_states, labels)
            total, lm_states = _weighted(states.lm_weights, lm.scores), lm.next_states
        if self._boost is not None:
            boost = self._boost.advance(states.boost_states, labels)
            total, boost_states = total + boost.scores, boost.next_states
        if self._is_neutral is not None:
            total = torch.where(self._is_neutral[labels], 0.0, total)
        return total, _moved(states, lm_states, boost_states, labels, self._is_neutral)

    def final_scores(self, states: FusionStates) -> torch.Tensor:
        """Scores [N] float32 of ending."""
        total = torch.zeros_like(states.lm_weights)
        if self._lm is not None:
            total = _weighted(states.lm_weights, self._lm.final_scores(states.lm_states))
        if self._boost is not None:
            total = total + self._boost.final_scores(states.boost_states)
        return total


class FusionTransitions(NamedTuple):
    """The transitions of N hypotheses by every label."""

    scores: torch.Tensor
    """[N, V] float32, to be added to each label's log-probability."""
    states: FusionStates
    """The states at which the transitions start."""
    lm: AllTransitions | None
    boost: AllTransitions | None
    is_neutral: torch.Tensor | None = None
    """[V + 1] bool, True for labels that move no state."""

    def follow(self, labels: torch.Tensor) -> FusionStates:
        """The states after `labels` [N] int64."""
        lm_states = self.states.lm_states if self.lm is None else self.lm.next_states(labels)
        boost_states = self.states.boost_states if self.boost is None else self.boost.next_states(labels)
        return _moved(self.states, lm_states, boost_states, labels, self.is_neutral)


def _moved(
    states: FusionStates,
    lm_states: torch.Tensor,
    boost_states: torch.Tensor,
    labels: torch.Tensor,
    is_neutral: torch.Tensor | None,
) -> FusionStates:
    """The new states, or the old ones where a label is neutral."""
    if is_neutral is not None:
        stays = is_neutral[labels]
        lm_states = torch.where(stays, states.lm_states, lm_states)
        boost_states = torch.where(stays, states.boost_states, boost_states)
    return FusionStates(lm_states, boost_states, states.lm_weights)


def _weighted(weights: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A weight of 0 gives 0 even where a score is minus infinity."""
    return torch.where(weights == 0, 0.0, weights * scores)
