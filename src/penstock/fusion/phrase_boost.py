"""PhraseBoost: what a search sees of the streams' phrase lists, an `Automaton` over all lists of an arena.

Lookups have fixed shapes, follow no failure arcs, and never synchronise with the host. Streams with different lists and
streams with none (`NO_PHRASES`) share a batch. Knows neither streams nor how lists come and go.
"""

from collections.abc import Sequence

import torch

from penstock.fusion.automaton import Arcs
from penstock.fusion.phrase_arena import NO_PHRASES, PhraseArena, split_records

__all__ = ["NO_PHRASES", "PhraseBoost"]


class PhraseBoost:
    """Bonuses of phrases as scores of labels; see docs/boosting.md for the rule."""

    def __init__(self, arena: PhraseArena, continues_word: Sequence[bool]):
        """continues_word: [V], as the arena's tables were built with."""
        self.vocabulary_size = arena.vocabulary_size
        self._arena = arena
        # Column V is what absent arcs are written to; int64 because it is an index.
        self._word_class = torch.tensor([*continues_word, False], device=arena.records.device).long()

    def label_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [N, V] float32 of every label from `states` [N] int64. A view: its rows lie V + 1 apart."""
        fields = split_records(self._arena.records.index_select(0, states))
        scores = self._arena.row_scores.index_select(0, fields.row)  # [N, V + 1]
        scores += fields.offsets.index_select(1, self._word_class)
        scores.scatter_(1, fields.own_labels.long(), fields.own_scores)
        return scores[:, :-1]

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1).

        Label V (blank) does no harm and means nothing.
        """
        label = labels.reshape(-1)
        fields = split_records(self._arena.records.index_select(0, states.reshape(-1)))
        entry = fields.row.long() * (self.vocabulary_size + 1) + label
        offset = fields.offsets.gather(1, self._word_class.index_select(0, label).unsqueeze(1)).squeeze(1)
        row_score = self._arena.row_scores.view(-1).index_select(0, entry) + offset
        row_next = self._arena.row_next.view(-1).index_select(0, entry)
        is_own = fields.own_labels == label.unsqueeze(1)  # True at most once a row
        has_own = is_own.any(dim=1)
        scores = torch.where(has_own, (is_own * fields.own_scores).sum(dim=1), row_score)
        next_states = torch.where(has_own, (is_own * fields.own_next).sum(dim=1), row_next)
        return Arcs(scores.view(labels.shape), next_states.long().view(labels.shape))

    def follow(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The next states of `advance`, without the scores; states, labels: [N] int64."""
        fields = split_records(self._arena.records.index_select(0, states))
        entry = fields.row.long() * (self.vocabulary_size + 1) + labels
        row_next = self._arena.row_next.view(-1).index_select(0, entry)
        is_own = fields.own_labels == labels.unsqueeze(1)  # True at most once a row
        own_next = (is_own * fields.own_next).sum(dim=1)
        return torch.where(is_own.any(dim=1), own_next, row_next).long()

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...] int64: what was lent to an unfinished phrase, paid back."""
        records = self._arena.records.index_select(0, states.reshape(-1))
        return split_records(records).final.reshape(states.shape)
