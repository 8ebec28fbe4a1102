"""The interface of a language model or a phrase list to a search: a weighted automaton over labels.

States are integers. Independent of searches.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch


class Transitions(NamedTuple):
    """One transition per state."""

    scores: torch.Tensor
    """float32, natural logarithm."""
    next_states: torch.Tensor
    """int64, of the same shape."""


class AllTransitions(NamedTuple):
    """The transitions of N states by every label."""

    scores: torch.Tensor
    """[N, V] float32, natural logarithm."""
    next_states: Callable[[torch.Tensor], torch.Tensor]
    """Maps one label per state, [N] int64, to its target state, [N] int64."""


class Automaton(Protocol):
    """Deterministic and complete: every state has a transition for every label; back-off and failure arcs are inside.

    States are int64 numbers on the automaton's device. Nothing here synchronizes with the host.
    """

    vocabulary_size: int

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        """Takes one transition from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1)."""

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        """Scores every label from `states` [N] int64, for a search that chooses by the scores and follows one label."""

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...]: end of sentence, or the back-off penalty of a phrase."""
