"""PhraseArena: the tables of many phrase lists in device tensors of fixed size and address, as one `Automaton`.

A table's pages may lie anywhere: its numbers are mapped to the arena's when it is written, and nothing moves
afterwards. Streams with different lists and streams with none (`NO_PHRASES`) share a batch.
"""

import heapq
from functools import partial

import numpy as np
import torch

from penstock.runtime import send_to_device
from penstock.scoring.automaton import AllTransitions, Transitions
from penstock.scoring.boosting.table import CONTINUES_WORD, ENDS_WORD, PhraseTable, block_labels

NO_PHRASES = 0
"""The state of a stream without phrases: every label scores 0 and leads back to it."""
PAGE_STATES = 64
"""States of a page, and blocks."""


class PhraseArena:
    """Bonuses of phrases as scores of labels; docs/boosting.md has the rule.

    V labels without blank, L labels per block, P blocks per state, S states and as many blocks in all pages together.
    A free page holds what was last written there: a state that outlived its list reads meaningless numbers in range.
    """

    pointers: torch.Tensor
    """[S, P] int32, block of labels jL .. jL + L - 1."""
    offsets: torch.Tensor
    """[S, 2] float32, added to the scores of labels that end the word before them and of those that continue it."""
    final: torch.Tensor
    """[S] float32, score of ending."""
    block_scores: torch.Tensor
    """[S, L] float32"""
    block_next: torch.Tensor
    """[S, L] int32, states."""

    def __init__(self, continues_word: np.ndarray, memory_bytes: int, device: torch.device | str = "cpu"):
        """Takes at most `memory_bytes`; continues_word: [V] bool. ValueError where it is too little or too much."""
        self.vocabulary_size = len(continues_word)
        self._block = block_labels(self.vocabulary_size)
        self._blocks_per_state = -(-self.vocabulary_size // self._block)
        page_bytes = PAGE_STATES * (4 * self._blocks_per_state + 12 + 8 * self._block)
        pages = memory_bytes // page_bytes
        if pages < 2:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too few: at least {2 * page_bytes} are needed")
        self.states = pages * PAGE_STATES
        if self.states >= 2**31:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too many: states are numbered in 32 bits")
        self.pointers = _zeros((self.states, self._blocks_per_state), torch.int32, device)
        self.offsets = _zeros((self.states, 2), torch.float32, device)
        self.final = _zeros((self.states,), torch.float32, device)
        self.block_scores = _zeros((self.states, self._block), torch.float32, device)
        self.block_next = _zeros((self.states, self._block), torch.int32, device)
        self.max_pages = pages - 1
        """Pages that a list can have. Page 0 is NO_PHRASES': zeros."""
        self._free = list(range(1, pages))
        self._is_free = [False] + [True] * self.max_pages
        word_class = torch.zeros(self._blocks_per_state * self._block, dtype=torch.int64)
        word_class[: self.vocabulary_size] = torch.from_numpy(np.asarray(continues_word, np.int64))
        self._word_class = word_class.to(device)
        self._is_of_class = torch.stack([word_class == ENDS_WORD, word_class == CONTINUES_WORD]).float().to(device)

    @property
    def free_pages(self) -> int:
        """Pages without a table."""
        return len(self._free)

    @staticmethod
    def pages_for(table: PhraseTable) -> int:
        """Pages that a table takes."""
        return -(-max(len(table.pointers), len(table.block_scores)) // PAGE_STATES)

    def write(self, table: PhraseTable) -> list[int]:
        """Copies a table into free pages and returns them; ValueError where they are too few.

        The table's state 0 is the first state of the first page. The copies are asynchronous and ordered on the current
        CUDA stream: searches must run on it too, or wait for it.
        """
        count = self.pages_for(table)
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} are free")
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._is_free[page] = False
        # 1) the arena's number of each state and block of these pages
        number = (np.array(pages)[:, None] * PAGE_STATES + np.arange(PAGE_STATES)).reshape(-1)
        states = self._upload(number[: len(table.pointers)])
        blocks = self._upload(number[: len(table.block_scores)])
        # 2) what the table refers to, by these numbers
        self.pointers.index_copy_(0, states, self._upload(number[table.pointers].astype(np.int32)))
        self.offsets.index_copy_(0, states, self._upload(table.offsets))
        self.final.index_copy_(0, states, self._upload(table.final))
        self.block_scores.index_copy_(0, blocks, self._upload(table.block_scores))
        self.block_next.index_copy_(0, blocks, self._upload(number[table.block_next].astype(np.int32)))
        return pages

    def erase(self, pages: list[int]) -> None:
        """Frees pages that `write` returned; ValueError for a free one. Their states must not be used any more."""
        for page in pages:
            if self._is_free[page]:
                raise ValueError(f"page {page} is free already")
            self._is_free[page] = True
            heapq.heappush(self._free, page)

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        """Scores of every label from `states` [N] int64."""
        # 1) the blocks of each state, side by side
        blocks = torch.embedding(self.block_scores, self.pointers.index_select(0, states))  # [N, P, L]
        scores = blocks.view(len(states), self._blocks_per_state * self._block)
        # 2) one offset per class of labels; a sum of one number and a zero, so nothing is rounded twice
        scores.addmm_(self.offsets.index_select(0, states), self._is_of_class)
        return AllTransitions(scores.narrow(1, 0, self.vocabulary_size), partial(self._next_states, states))

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        """Takes one transition from each of `states` [...] int64 by `labels` of the same shape (0 .. V-1).

        Label V (blank) is accepted; what is returned for it has no meaning.
        """
        labels = labels.clamp(max=self.vocabulary_size - 1)
        entry = self._entry(states, labels)
        offset = torch.add(torch.take(self._word_class, labels), states, alpha=2)
        scores = torch.take(self.block_scores, entry) + torch.take(self.offsets, offset)
        return Transitions(scores, torch.take(self.block_next, entry).long())

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of ending in `states` [...] int64: the back-off penalty of an unfinished phrase."""
        return torch.take(self.final, states)

    def _next_states(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Targets [N] int64 of `labels` [N] int64, 0 .. V-1."""
        return torch.take(self.block_next, self._entry(states, labels)).long()

    def _entry(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Index of each label's entry in the flattened blocks, int64. L is a power of two."""
        column = labels >> (self._block.bit_length() - 1)
        block = torch.take(self.pointers, torch.add(column, states, alpha=self._blocks_per_state))
        return torch.add(labels & (self._block - 1), block, alpha=self._block)

    def _upload(self, values: np.ndarray) -> torch.Tensor:
        """A copy on the device, asynchronous and ordered on the current stream."""
        return send_to_device(torch.from_numpy(values), self.final.device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Returns zeros. On a CPU the system hands the memory out page by page as lists are written."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))
