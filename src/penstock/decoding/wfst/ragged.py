"""Operations on ragged batches: expanding, selecting, pruning and recombining the entries of each row.

Entries of all rows of a batch follow each other in flat tensors. On a CPU the host knows how many there are, and
tensors have just that size: `DynamicShapes`. A CUDA graph has static shapes: entries after the last live one are dead.
"""

from typing import NamedTuple, Protocol

import torch

from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID

_DIGITS = ((20, 2048), (10, 1024), (0, 1024))
"""Shift and bins of the three digits of a cost's 31 bits."""
_LOW_32_BITS = 2**32 - 1


class Expansion(NamedTuple):
    """Entries of a CSR that belong to n sources, in order."""

    sources: torch.Tensor
    """[m] int64, 0 .. n-1"""
    entries: torch.Tensor
    """[m] int64"""
    is_live: torch.Tensor | None
    """[m] bool; None: all are."""


class Selected(NamedTuple):
    """Positions where a mask is True, in order."""

    positions: torch.Tensor
    """[m] int64; in range where dead."""
    is_live: torch.Tensor | None
    """[m] bool; None: all are."""
    total: torch.Tensor | int
    """Live positions: [] int64, or a number on the host."""


class Shapes(Protocol):
    """Expands and selects entries of flat tensors."""

    @property
    def is_static(self) -> bool:
        """True where shapes do not depend on values."""

    def expand(self, starts: torch.Tensor, degrees: torch.Tensor, capacity: int) -> Expansion:
        """Entries starts .. starts + degrees - 1 ([n] int64) of each source; at most `capacity` together."""

    def select(self, mask: torch.Tensor, capacity: int) -> Selected:
        """True positions of a mask [n] bool; at most `capacity`."""


class DynamicShapes:
    """Live entries alone; on a CPU."""

    is_static = False

    def __init__(self) -> None:
        self._numbers = torch.arange(1024)

    def expand(self, starts: torch.Tensor, degrees: torch.Tensor, capacity: int) -> Expansion:
        """Sizes are those of the degrees."""
        ends = degrees.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        if total > self._numbers.shape[0]:
            self._numbers = torch.arange(2 * total)
        sources = torch.repeat_interleave(degrees, output_size=total)
        shifts = (starts - ends).add_(degrees)
        return Expansion(sources, shifts.index_select(0, sources).add_(self._numbers[:total]), None)

    def select(self, mask: torch.Tensor, capacity: int) -> Selected:
        """Selects as many as are True."""
        positions = torch.from_numpy(mask.numpy().nonzero()[0])  # in half the time of torch's
        return Selected(positions, None, len(positions))


class StaticShapes:
    """Shapes with as many entries as memory has room for; never waits for the host."""

    is_static = True

    def __init__(self, device: torch.device, largest: int):
        """largest: the largest capacity that will be asked for."""
        self._numbers = torch.arange(largest, device=device)

    def expand(self, starts: torch.Tensor, degrees: torch.Tensor, capacity: int) -> Expansion:
        """Sizes are `capacity`."""
        ends = degrees.cumsum(0)
        slots = self._numbers[:capacity]
        is_live = slots < ends[-1:]
        sources = torch.searchsorted(ends, slots, right=True).clamp(max=len(degrees) - 1)
        shifts = starts - ends + degrees
        return Expansion(sources, torch.where(is_live, shifts.index_select(0, sources) + slots, 0), is_live)

    def select(self, mask: torch.Tensor, capacity: int) -> Selected:
        """`capacity` positions."""
        ranks = mask.cumsum(0)
        slots = self._numbers[:capacity]
        positions = torch.searchsorted(ranks, slots, right=True).clamp(max=len(mask) - 1)
        return Selected(positions, slots < ranks[-1:], ranks[-1])


def histogram_prune(
    rows: torch.Tensor, costs: torch.Tensor, weights: torch.Tensor, limit: int, batch: int
) -> torch.Tensor:
    """Marks the cheapest entries of each row whose weights add up to at most `limit`; ties by position.

    rows: [n] int64, ascending; costs: [n] float32, at least 0; weights: [n] int64, at least 0. Returns [n] bool. With
    the entries of a row in order of cost it is the longest prefix that fits.
    """
    bits = costs.view(torch.int32)
    is_kept = torch.zeros_like(bits, dtype=torch.bool)
    is_tied = torch.ones_like(is_kept)
    room = torch.full((batch,), limit, dtype=torch.int64, device=rows.device)
    for shift, bins in _DIGITS:
        # 1) weight of each digit among the entries that agree with the threshold so far: [B, bins]
        digits = (bits >> shift) & (bins - 1)
        tied_weights = torch.where(is_tied, weights, 0)
        histogram = torch.zeros(batch * bins, dtype=torch.int64, device=rows.device)
        histogram.scatter_add_(0, rows * bins + digits, tied_weights)
        sums = histogram.view(batch, bins).cumsum(dim=1)
        # 2) the first digit that does not fit as a whole
        threshold = (sums <= room.unsqueeze(1)).sum(dim=1)
        below = sums.gather(1, (threshold - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        room -= torch.where(threshold > 0, below, 0)
        of_row = threshold.index_select(0, rows)
        is_kept |= is_tied & (digits < of_row)
        is_tied &= digits == of_row
    # 3) entries of equal cost, in order of position
    tied_weights = torch.where(is_tied, weights, 0)
    totals = torch.zeros(batch, dtype=torch.int64, device=rows.device).scatter_add_(0, rows, tied_weights)
    before_row = totals.cumsum(0) - totals
    in_row = tied_weights.cumsum(0) - before_row.index_select(0, rows)
    return is_kept | (is_tied & (in_row <= room.index_select(0, rows)))


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
