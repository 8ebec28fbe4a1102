"""Shapes of ragged batches: dynamic, with the live entries alone, or static, with all that memory has room for.

Entries of all rows of a batch follow each other in flat tensors. On a CPU the host knows how many there are, and
tensors have just that size. A CUDA graph has static shapes: entries after the last live one are dead.
"""

from typing import NamedTuple, Protocol

import torch


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
        """As many as are True."""
        positions = torch.from_numpy(mask.numpy().nonzero()[0])  # in half the time of torch's
        return Selected(positions, None, len(positions))


class StaticShapes:
    """As many entries as memory has room for; never waits for the host."""

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
