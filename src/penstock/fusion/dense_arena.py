"""DenseArena: phrase lists with a row of scores and targets for every state, for models with few labels.

It takes more memory than `PhraseArena`, and a look at a state is one gather. Both are pages of states at fixed
addresses. Knows no phrases and not who needs which table.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from penstock.fusion.automaton import Arcs, Look
from penstock.fusion.dense_table import DenseTable, build_dense_table
from penstock.fusion.page_pool import PagePool
from penstock.fusion.phrase_arena import STATES_PER_PAGE, PageCount, Placement, state_numbers, upload, zeros
from penstock.fusion.phrase_trie import PhraseTrie

LEAST_DENSE_STATES = 64 * 10_240
"""With fewer there has to be a paged arena too: this many are 64 lists of 1,000 phrases of ten tokens each."""


class DenseArena:
    """Fixed tensors and their free pages; state 0 is NO_PHRASES. Free pages hold numbers out of date but in range."""

    scores: torch.Tensor
    """[S, V] float32"""
    next_states: torch.Tensor
    """[S * V] int64: state s goes to `next_states[s * V + label]`."""
    final: torch.Tensor
    """[S] float32"""

    def __init__(self, continues_word: Sequence[bool], memory_bytes: int, device: torch.device | str = "cpu"):
        """continues_word: [V]; memory_bytes: of all tensors, at most. ValueError where it is too little or too much."""
        self.vocabulary_size = len(continues_word)
        self._continues_word = np.asarray(continues_word, dtype=bool)
        pages = self.states_in(memory_bytes, self.vocabulary_size) // STATES_PER_PAGE
        if pages < 2:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too few for {self.vocabulary_size} labels")
        states = pages * STATES_PER_PAGE
        self.states = states
        if states >= 2**31:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too many: a list needs a fraction of them")
        self.scores = zeros((states, self.vocabulary_size), torch.float32, device)
        self.next_states = zeros((states * self.vocabulary_size,), torch.int64, device)
        self.final = zeros((states,), torch.float32, device)
        self._pool = PagePool(pages, reserved=1)

    @staticmethod
    def states_in(memory_bytes: int, vocabulary_size: int) -> int:
        """How many states that much memory holds."""
        return memory_bytes // (12 * vocabulary_size + 4)

    @property
    def lendable(self) -> PageCount:
        """What all lists together can have."""
        return PageCount(self._pool.lendable, 0)

    @property
    def free(self) -> PageCount:
        """What can be taken now."""
        return PageCount(self._pool.free, 0)

    def build(self, trie: PhraseTrie) -> DenseTable:
        """The table that `write` takes."""
        return build_dense_table(trie, self._continues_word)

    @staticmethod
    def size_of(table: DenseTable) -> PageCount:
        """What a table takes."""
        return PageCount(-(-len(table.final) // STATES_PER_PAGE), 0)

    def write(self, table: DenseTable) -> Placement:
        """As `PhraseArena.write`."""
        size = self.size_of(table)
        if not size.fits(self.free):
            raise ValueError(f"{size} wanted, {self.free} are free")
        place = Placement(self._pool.take(size.state_pages), [])
        number = state_numbers(place)
        mine = upload(number[: len(table.final)], self.scores.device)
        self.scores.index_copy_(0, mine, upload(table.scores, self.scores.device))
        by_state = self.next_states.view(-1, self.vocabulary_size)
        by_state.index_copy_(0, mine, upload(number[table.next_states], self.scores.device))
        self.final.index_copy_(0, mine, upload(table.final, self.scores.device))
        return place

    def erase(self, place: Placement) -> None:
        """As `PhraseArena.erase`."""
        self._pool.give_back(place.state_pages)


class DenseBoost:
    """The `Automaton` over all lists of a dense arena: scores and targets as `PhraseBoost` has them."""

    def __init__(self, arena: DenseArena):
        self.vocabulary_size = arena.vocabulary_size
        self._arena = arena

    def look(self, states: torch.Tensor) -> Look:
        """Every label's score from `states` [N] int64, and where it leads."""
        return Look(self._arena.scores.index_select(0, states), partial(self._next_states, states))

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1).

        Label V (blank) does no harm and means nothing.
        """
        labels = labels.clamp(max=self.vocabulary_size - 1)
        place = torch.add(labels, states, alpha=self.vocabulary_size)
        return Arcs(torch.take(self._arena.scores, place), torch.take(self._arena.next_states, place))

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...] int64: what was lent to an unfinished phrase, paid back."""
        return torch.take(self._arena.final, states)

    def _next_states(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Labels [N] int64 0 .. V-1 -> [N] int64."""
        return torch.take(self._arena.next_states, torch.add(labels, states, alpha=self.vocabulary_size))
