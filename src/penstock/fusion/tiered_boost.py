"""TieredBoost: two automata as one, for batches whose streams have phrase lists of both forms."""

import torch

from penstock.fusion.automaton import Arcs, Automaton, Look
from penstock.fusion.phrase_arena import NO_PHRASES


class TieredBoost:
    """States below a border are the first automaton's, the others the second's, counted from the border.

    Both are asked about every state, about NO_PHRASES where it is not theirs: shapes stay fixed, and the host is not
    asked whose it is.
    """

    def __init__(self, first: Automaton, second: Automaton, border: int):
        self.vocabulary_size = first.vocabulary_size
        self._first, self._second, self._border = first, second, border

    def look(self, states: torch.Tensor) -> Look:
        """Every label's score from `states` [N] int64, and where it leads."""
        is_first, of_first, of_second = self._split(states)
        first, second = self._first.look(of_first), self._second.look(of_second)

        def next_states(labels: torch.Tensor) -> torch.Tensor:
            return torch.where(is_first, first.next_states(labels), second.next_states(labels) + self._border)

        return Look(torch.where(is_first.unsqueeze(1), first.scores, second.scores), next_states)

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1).

        Label V (blank) does no harm and means nothing.
        """
        is_first, of_first, of_second = self._split(states)
        first, second = self._first.advance(of_first, labels), self._second.advance(of_second, labels)
        return Arcs(
            torch.where(is_first, first.scores, second.scores),
            torch.where(is_first, first.next_states, second.next_states + self._border),
        )

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...] int64: what was lent to an unfinished phrase, paid back."""
        is_first, of_first, of_second = self._split(states)
        return torch.where(is_first, self._first.final_scores(of_first), self._second.final_scores(of_second))

    def _split(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whether each of `states` is the first's, and its number in the first and in the second."""
        is_first = states < self._border
        return is_first, states * is_first, (states - self._border).clamp_(min=NO_PHRASES)  # NO_PHRASES is 0
