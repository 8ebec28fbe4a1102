"""Fusion: a language model and phrase boosting as one score per label, with what each stream chose. Knows no search."""

from typing import NamedTuple

import torch

from penstock.fusion.automaton import Automaton, Look


class FusionRows(NamedTuple):
    """Where N hypotheses stand in the automata, and their stream's weight. A search gathers and selects its fields."""

    lm_states: torch.Tensor
    """[N] int64; 0 where there is no language model."""
    boost_states: torch.Tensor
    """[N] int64; the phrase list's start, or `NO_PHRASES`."""
    lm_weights: torch.Tensor
    """[N] float32; 0 switches the language model off for a stream."""


class Fusion:
    """Sums the weighted scores of the automata present."""

    def __init__(self, lm: Automaton | None = None, boost: Automaton | None = None):
        """Both over the same vocabulary."""
        self._lm = lm
        self._boost = boost

    @property
    def is_empty(self) -> bool:
        """True where there is nothing to add, whatever a stream chose."""
        return self._lm is None and self._boost is None

    def label_scores(self, rows: FusionRows) -> torch.Tensor:
        """What to add to each label's log-probability, [N, V] float32."""
        return self.look(rows).scores

    def look(self, rows: FusionRows) -> "FusionLook":
        """The same, for a search that then follows one label of each hypothesis."""
        lm = self._lm.look(rows.lm_states) if self._lm is not None else None
        boost = self._boost.look(rows.boost_states) if self._boost is not None else None
        if lm is None and boost is None:
            raise ValueError("an empty fusion has no scores: ask is_empty first")
        if lm is None:
            return FusionLook(boost.scores, rows, None, boost)
        scores = _weighted(rows.lm_weights.unsqueeze(1), lm.scores)
        return FusionLook(scores if boost is None else scores + boost.scores, rows, lm, boost)

    def advance(self, rows: FusionRows, labels: torch.Tensor) -> tuple[torch.Tensor, FusionRows]:
        """Scores [N] of `labels` [N] int64 as `label_scores` has them, and where they lead."""
        total = torch.zeros_like(rows.lm_weights)
        lm_states, boost_states = rows.lm_states, rows.boost_states
        if self._lm is not None:
            arcs = self._lm.advance(rows.lm_states, labels)
            total, lm_states = _weighted(rows.lm_weights, arcs.scores), arcs.next_states
        if self._boost is not None:
            arcs = self._boost.advance(rows.boost_states, labels)
            total, boost_states = total + arcs.scores, arcs.next_states
        return total, FusionRows(lm_states, boost_states, rows.lm_weights)

    def final_scores(self, rows: FusionRows) -> torch.Tensor:
        """What ending adds to each hypothesis, [N]."""
        total = torch.zeros_like(rows.lm_weights)
        if self._lm is not None:
            total = _weighted(rows.lm_weights, self._lm.final_scores(rows.lm_states))
        if self._boost is not None:
            total = total + self._boost.final_scores(rows.boost_states)
        return total


class FusionLook(NamedTuple):
    """What the automata say of N hypotheses."""

    scores: torch.Tensor
    """[N, V] float32, what to add to each label's log-probability."""
    rows: FusionRows
    """Where the hypotheses stand."""
    lm: Look | None
    boost: Look | None

    def follow(self, labels: torch.Tensor) -> FusionRows:
        """Where `labels` [N] int64 lead."""
        lm_states = self.rows.lm_states if self.lm is None else self.lm.next_states(labels)
        boost_states = self.rows.boost_states if self.boost is None else self.boost.next_states(labels)
        return FusionRows(lm_states, boost_states, self.rows.lm_weights)


def _weighted(weights: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A weight of 0 gives 0 even where a score is minus infinity."""
    return torch.where(weights == 0, 0.0, weights * scores)
