"""Recombination: of tokens in the same states, only the cheapest goes on."""

import torch

from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID

_LOW_32_BITS = 2**32 - 1


class Recombination:
    """A hash table of fixed size for each row; its size, and not the graph's, bounds the memory.

    Each entry bids for a cell with its cost and position, in two rounds with different hashes. An entry whose cell went
    to other states in both rounds stays, perhaps as a duplicate: the search stays exact, and duplicates merge later.
    """

    def __init__(self, batch: int, cells: int, device: torch.device | str = "cpu"):
        """cells: of a row, a power of two, at most 2 ** 24."""
        self._table = torch.empty(batch * cells, dtype=torch.int64, device=device)
        # Numbers as tensors: torch makes one of a Python number at every use.
        numbers = cells, cells - 1, HASH_MULTIPLIER, 32, _LOW_32_BITS
        self._cells, self._last_cell, self._multiplier, self._half, self._low_half = (
            torch.tensor(number, device=device) for number in numbers
        )
        self._shifts = [torch.tensor(shift, device=device) for shift in HASH_SHIFTS]

    def survivors(
        self, rows: torch.Tensor, keys: torch.Tensor, costs: torch.Tensor, is_live: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Marks the entries that go on, [n] bool; and `winners`, whose arguments it takes."""
        winners = self.winners(rows, keys, costs, is_live)
        is_own = winners == torch.arange(len(rows), device=rows.device)
        return is_own if is_live is None else is_own & is_live, winners

    def winners(
        self, rows: torch.Tensor, keys: torch.Tensor, costs: torch.Tensor, is_live: torch.Tensor | None
    ) -> torch.Tensor:
        """The entry that each entry is recombined with, [n] int64: itself where it goes on.

        rows: [n] int64; keys: [n] int64, equal where states are; costs: [n] float32, at least 0; ties by position.
        is_live: [n] bool, or None on a CPU: then a second round without entries is left out.
        """
        positions = torch.arange(len(rows), device=rows.device)
        bids = costs.view(torch.int32).long().bitwise_left_shift_(self._half).bitwise_or_(positions)
        if is_live is not None:
            bids = torch.where(is_live, bids, NO_BID)
        hashes, first_cells = keys * self._multiplier, rows * self._cells
        # 1) the cheapest bid for each cell; where its states are others, the entry is still open
        winners = self._bid(hashes, first_cells, bids, 0)
        if is_live is not None:
            winners = winners.clamp(max=len(rows) - 1)  # where no bid is live
        is_open = keys.index_select(0, winners) != keys
        # 2) the same for those that are left
        if is_live is None:
            rest = is_open.nonzero().squeeze(1)
            if not len(rest):
                return winners
            hashes, first_cells, bids = (t.index_select(0, rest) for t in (hashes, first_cells, bids))
            again = self._bid(hashes, first_cells, bids, 1)
            is_other = keys.index_select(0, again) != keys.index_select(0, rest)
            return winners.index_copy_(0, rest, torch.where(is_other, rest, again))
        again = self._bid(hashes, first_cells, torch.where(is_open, bids, NO_BID), 1).clamp(max=len(rows) - 1)
        is_other = keys.index_select(0, again) != keys
        return torch.where(is_open, torch.where(is_other, positions, again), winners)

    def _bid(self, hashes: torch.Tensor, first_cells: torch.Tensor, bids: torch.Tensor, turn: int) -> torch.Tensor:
        """Positions of the cheapest bids for the entries' cells, [n] int64."""
        cells = (hashes >> self._shifts[turn]).bitwise_and_(self._last_cell).add_(first_cells)
        self._table.index_fill_(0, cells, NO_BID)
        self._table.scatter_reduce_(0, cells, bids, "amin")
        return self._table.index_select(0, cells).bitwise_and_(self._low_half)
