"""PhraseArena: the tables of many phrase lists in device tensors of a fixed size and address, in pages.

A table's pages may lie anywhere: its state numbers are mapped to the arena's when it is written, and nothing moves
afterwards. Knows no phrases and not who needs which table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.fusion.page_pool import PagePool
from penstock.fusion.phrase_table import OWN_ARCS, PhraseTable, build_table
from penstock.fusion.phrase_trie import PhraseTrie

NO_PHRASES = 0
"""The state of a stream without phrases: every label scores 0 and leads back to it."""
STATES_PER_PAGE = 64
_HEAD_WORDS = 4  # row, two offsets, final score
_STATE_WORDS = _HEAD_WORDS + 3 * OWN_ARCS


class PageCount(NamedTuple):
    """Memory of one list or of many."""

    state_pages: int
    rows: int

    def fits(self, other: "PageCount") -> bool:
        """True where `other` has room for this."""
        return self.state_pages <= other.state_pages and self.rows <= other.rows

    def __add__(self, other: "PageCount") -> "PageCount":
        return PageCount(self.state_pages + other.state_pages, self.rows + other.rows)


class Placement(NamedTuple):
    """Where a table lies."""

    state_pages: list[int]
    rows: list[int]

    @property
    def start(self) -> int:
        """The arena's number of the table's state 0."""
        return self.state_pages[0] * STATES_PER_PAGE

    @property
    def most_states(self) -> int:
        """That its pages have room for."""
        return len(self.state_pages) * STATES_PER_PAGE

    @property
    def size(self) -> PageCount:
        """What the table takes."""
        return PageCount(len(self.state_pages), len(self.rows))


class PhraseArena:
    """Fixed tensors and their free pages.

    A state's numbers lie side by side, so that one gather fetches all of them. What is in a free page is out of date
    but in range: a state number that was not cleared after its list was removed reads meaningless scores, never
    memory of anything else.
    """

    records: torch.Tensor
    """[S, 4 + 3 OWN_ARCS] int32, where floats are stored bit by bit; see `split_records`. S: states of all pages."""
    rows: torch.Tensor
    """[R, 2, V + 1] int32: scores, stored bit by bit, and the arena's state numbers. Column V is 0."""

    def __init__(self, continues_word: Sequence[bool], memory_bytes: int, device: torch.device | str = "cpu"):
        """continues_word: [V]; memory_bytes: of all tensors together, at most.

        ValueError where it is too little for one small list.
        """
        self._continues_word = np.asarray(continues_word, dtype=bool)
        self.vocabulary_size = vocabulary_size = len(continues_word)
        # A page of states and a row, equally many: lists of 1,000 phrases have 0.4 to 1 rows a page.
        pair_bytes = 4 * (STATES_PER_PAGE * _STATE_WORDS + 2 * (vocabulary_size + 1))
        pages = rows = memory_bytes // pair_bytes
        if pages < 2:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too few: at least {2 * pair_bytes} are needed")
        if pages * STATES_PER_PAGE >= 2**31:
            raise ValueError(f"{memory_bytes} bytes for phrase lists are too many: states are numbered in 32 bits")
        self.states = pages * STATES_PER_PAGE
        self.records = torch.zeros((self.states, _STATE_WORDS), dtype=torch.int32, device=device)
        self.rows = zeros((rows, 2, vocabulary_size + 1), torch.int32, device)
        # Every state begins as NO_PHRASES: row 0, which is all 0, and no arcs of its own, so label V in each place.
        self.records[:, _HEAD_WORDS : _HEAD_WORDS + OWN_ARCS] = vocabulary_size
        self._state_pool = PagePool(pages, reserved=1)
        self._row_pool = PagePool(rows, reserved=1)

    @property
    def lendable(self) -> PageCount:
        """What all lists together can have."""
        return PageCount(self._state_pool.lendable, self._row_pool.lendable)

    @property
    def free(self) -> PageCount:
        """What can be taken now."""
        return PageCount(self._state_pool.free, self._row_pool.free)

    def build(self, trie: PhraseTrie) -> PhraseTable:
        """The table that `write` takes; StreamError INVALID_ARGUMENT where it wants more rows than there are."""
        return build_table(trie, self._continues_word, self.lendable.rows)

    @staticmethod
    def size_of(table: PhraseTable) -> PageCount:
        """What a table takes."""
        return PageCount(-(-len(table.row) // STATES_PER_PAGE), len(table.row_scores))

    def write(self, table: PhraseTable) -> Placement:
        """Puts a table into free pages; ValueError where they are too few.

        The copies are asynchronous and ordered on the current stream: searches must run on it too, or wait for it.
        """
        size = self.size_of(table)
        if not size.fits(self.free):
            raise ValueError(f"{size} wanted, {self.free} are free")
        place = Placement(self._state_pool.take(size.state_pages), self._row_pool.take(size.rows))
        number, rows, device = state_numbers(place), np.array(place.rows), self.records.device
        row_values = np.stack([table.row_scores.view(np.int32), number[table.row_next].astype(np.int32)], axis=1)
        self.rows.index_copy_(0, upload(rows, device), upload(row_values, device))
        records = _records(table, rows[table.row], number)
        self.records.index_copy_(0, upload(number[: len(table.row)], device), upload(records, device))
        return place

    def erase(self, place: Placement) -> None:
        """Frees a table's pages. Whoever still stands in one of its states must leave it for NO_PHRASES."""
        self._state_pool.give_back(place.state_pages)
        self._row_pool.give_back(place.rows)


def state_numbers(place: Placement) -> np.ndarray:
    """The arena's number of each state that there is room for, int64."""
    pages = np.array(place.state_pages)
    return (pages[:, None] * STATES_PER_PAGE + np.arange(STATES_PER_PAGE)).reshape(-1)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """As `torch.zeros`; on a host the system hands the memory out page by page as lists are written."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


def upload(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device, asynchronous and ordered on the current stream."""
    host = torch.from_numpy(values)
    if device.type != "cuda":
        return host.to(device)
    # The allocator keeps pinned memory from being used again before the copy is done.
    return host.pin_memory().to(device, non_blocking=True)


def _records(table: PhraseTable, row: np.ndarray, number: np.ndarray) -> np.ndarray:
    """[N, 4 + 3 OWN_ARCS] int32. row: [N], the arena's; number: the arena's number of each of the table's states."""
    heads = np.stack([table.offsets[:, 0], table.offsets[:, 1], table.final], axis=1)
    columns = [
        row.astype(np.int32)[:, None],
        heads.view(np.int32),
        table.own_labels,
        table.own_scores.view(np.int32),
        number[table.own_next].astype(np.int32),
    ]
    return np.concatenate(columns, axis=1)


class StateFields(NamedTuple):
    """The records of N states, field by field."""

    row: torch.Tensor
    """[N] int32"""
    offsets: torch.Tensor
    """[N, 2] float32"""
    final_bits: torch.Tensor
    """[N, 1] int32, see `final`"""
    own_labels: torch.Tensor
    """[N, OWN_ARCS] int32"""
    own_values: torch.Tensor
    """[N, 2, OWN_ARCS] int32, scores and next states as in `PhraseArena.rows`"""

    @property
    def final(self) -> torch.Tensor:
        """[N] float32"""
        return self.final_bits.view(torch.float32).squeeze(1)

    @property
    def own_scores(self) -> torch.Tensor:
        """[N, OWN_ARCS] float32"""
        return self.own_values[:, 0].view(torch.float32)

    @property
    def own_next(self) -> torch.Tensor:
        """[N, OWN_ARCS] int32"""
        return self.own_values[:, 1]


_FIELD_WORDS = (1, 2, 1, OWN_ARCS, 2 * OWN_ARCS)


def split_records(records: torch.Tensor) -> StateFields:
    """Views of `records` [N, 4 + 3 OWN_ARCS] int32. As few as can be: each costs a search as much as a small sum."""
    row, offsets, final, own_labels, own_values = records.split(_FIELD_WORDS, dim=1)
    return StateFields(
        row.squeeze(1), offsets.view(torch.float32), final, own_labels, own_values.unflatten(1, (2, OWN_ARCS))
    )
