"""PhraseBoost: what a search sees of the streams' phrase lists, an `Automaton` over all lists of an arena.

Lookups have fixed shapes, follow no failure arcs, and never synchronise with the host. Streams with different lists and
streams with none (`NO_PHRASES`) share a batch. Knows neither streams nor how lists come and go.
"""

from collections.abc import Sequence
from functools import partial

import torch

from penstock.fusion.automaton import Arcs, Look
from penstock.fusion.phrase_arena import NO_PHRASES, PhraseArena, split_records

__all__ = ["NO_PHRASES", "PhraseBoost"]


class PhraseBoost:
    """Bonuses of phrases as scores of labels; see docs/boosting.md for the rule."""

    def __init__(self, arena: PhraseArena, continues_word: Sequence[bool]):
        """continues_word: [V], as the arena's tables were built with."""
        self.vocabulary_size = arena.vocabulary_size
        self._arena = arena
        # Column V is what absent arcs are written to.
        word_class = torch.tensor([*continues_word, False], device=arena.records.device).long()
        self._word_class = word_class
        self._is_of_class = torch.stack([word_class == 0, word_class == 1]).float()  # [2, V + 1]

    def look(self, states: torch.Tensor) -> Look:
        """Every label's score from `states` [N] int64, and where it leads. The scores are a view with rows apart."""
        fields = split_records(self._arena.records.index_select(0, states))
        arcs = self._arena.rows.index_select(0, fields.row)  # [N, 2, V + 1]
        # Sums of one number and zeros: exact, and one operation for both classes.
        arcs[:, 0].view(torch.float32).addmm_(fields.offsets, self._is_of_class)
        arcs.scatter_(2, fields.own_labels.long().unsqueeze(1).expand(-1, 2, -1), fields.own_values)
        return Look(arcs[:, 0, :-1].view(torch.float32), partial(_next_states, arcs[:, 1]))

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1).

        Label V (blank) does no harm and means nothing.
        """
        label = labels.reshape(-1)
        fields = split_records(self._arena.records.index_select(0, states.reshape(-1)))
        entry = fields.row.long() * 2 * (self.vocabulary_size + 1) + label
        offset = fields.offsets.gather(1, self._word_class.index_select(0, label).unsqueeze(1)).squeeze(1)
        places = self._arena.rows.view(-1)
        row_score = places.view(torch.float32).index_select(0, entry) + offset
        row_next = places.index_select(0, entry + self.vocabulary_size + 1)
        is_own = fields.own_labels == label.unsqueeze(1)  # True at most once a row
        has_own = is_own.any(dim=1)
        scores = torch.where(has_own, (is_own * fields.own_scores).sum(dim=1), row_score)
        next_states = torch.where(has_own, (is_own * fields.own_next).sum(dim=1), row_next)
        return Arcs(scores.view(labels.shape), next_states.long().view(labels.shape))

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...] int64: what was lent to an unfinished phrase, paid back."""
        records = self._arena.records.index_select(0, states.reshape(-1))
        return split_records(records).final.reshape(states.shape)


def _next_states(arcs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """arcs: [N, V + 1] int32; labels: [N] int64"""
    return arcs.gather(1, labels.unsqueeze(1)).squeeze(1).long()
