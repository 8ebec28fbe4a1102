"""What a search sees of a language model or a phrase list: a weighted automaton over labels, its states integers."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch


class Arcs(NamedTuple):
    """Where labels lead from states."""

    scores: torch.Tensor
    """float32, natural logarithm."""
    next_states: torch.Tensor
    """int64, of the same shape."""


class Look(NamedTuple):
    """All arcs of N states."""

    scores: torch.Tensor
    """[N, V] float32, of every label."""
    next_states: Callable[[torch.Tensor], torch.Tensor]
    """Labels [N] int64 -> where they lead, [N] int64."""


class Automaton(Protocol):
    """Deterministic and complete: every state has an arc for every label (back-off and failure are inside).

    States are int64 numbers on the automaton's device. Nothing here synchronises with the host.
    """

    vocabulary_size: int

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1)."""

    def look(self, states: torch.Tensor) -> Look:
        """The arcs of `states` [N] int64, for a search that chooses by their scores and then follows one of them."""

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...]: end of sentence, or bonuses paid back."""
