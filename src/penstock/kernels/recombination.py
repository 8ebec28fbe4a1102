"""Recombination of tokens in equal states in four short launches, where PyTorch takes some twenty.

The PyTorch reference is `penstock.decoding.wfst.recombination.Recombination`: the same cells, bids and survivors, bit
for bit, because minima of integers do not depend on the order of threads.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers and the sizes it is compiled for

import torch

from penstock.kernels.blocks import tl, triton
from penstock.kernels.capability import require
from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID

BLOCK_ENTRIES = 256


class FusedRecombination:
    """Two hash tables for each row, one for each round; as `Recombination`."""

    def __init__(self, batch: int, cells: int, device: torch.device | str):
        """cells: of a row and round, a power of two. ValueError where kernels cannot run."""
        self._tables = torch.empty(2, batch * cells, dtype=torch.int64, device=device)
        require(self._tables.device)
        self._sizes = {
            "cells": cells, "multiplier": HASH_MULTIPLIER, "first_shift": HASH_SHIFTS[0],
            "second_shift": HASH_SHIFTS[1], "no_bid": NO_BID, "block": BLOCK_ENTRIES,
        }  # fmt: skip

    def survivors(
        self, rows: torch.Tensor, keys: torch.Tensor, costs: torch.Tensor, is_live: torch.Tensor | None
    ) -> torch.Tensor:
        """Marks the entries that go on, [n] bool; rows, keys [n] int64, costs [n] float32, is_live [n] bool or None."""
        live = torch.ones_like(rows, dtype=torch.bool) if is_live is None else is_live
        is_kept = torch.zeros_like(live)
        if len(rows):
            entries = rows.contiguous(), keys.contiguous(), costs.contiguous(), live.contiguous()
            grid = (triton.cdiv(len(rows), BLOCK_ENTRIES),)
            for step in range(4):
                _recombine_kernel[grid](*entries, *self._tables, is_kept, len(rows), step=step, **self._sizes)
        return is_kept


@triton.jit(do_not_specialize=["count"])
def _recombine_kernel(
    rows, keys, costs, is_live, first_table, second_table, is_kept, count,
    step: tl.constexpr, cells: tl.constexpr, multiplier: tl.constexpr, first_shift: tl.constexpr,
    second_shift: tl.constexpr, no_bid: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of entries). Steps: 0 clears the cells, 1 and 2 are the rounds, 3 marks the survivors."""
    position = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    live = tl.load(is_live + position, mask=position < count, other=0) != 0
    row = tl.load(rows + position, mask=live, other=0)
    key = tl.load(keys + position, mask=live, other=0)
    # 1) the entry's cell in either round
    hashed = key * multiplier
    first = first_table + row * cells + ((hashed >> first_shift) & (cells - 1))
    second = second_table + row * cells + ((hashed >> second_shift) & (cells - 1))
    nothing = tl.full([block], no_bid, tl.int64)
    if step == 0:
        tl.store(first, nothing, mask=live)
        tl.store(second, nothing, mask=live)
    else:
        cost = tl.load(costs + position, mask=live, other=0.0)
        bid = (cost.to(tl.int32, bitcast=True).to(tl.int64) << 32) | position
        if step == 1:
            tl.atomic_min(first, bid, mask=live)
        else:
            # 2) the first round is lost to other states: bid again
            winner = tl.load(first, mask=live, other=0) & 0xFFFFFFFF
            is_open = live & (tl.load(keys + winner, mask=live, other=0) != key)
            if step == 2:
                tl.atomic_min(second, bid, mask=is_open)
            else:
                # 3) winners of a round, and what lost both to other states
                again = tl.load(second, mask=is_open, other=0) & 0xFFFFFFFF
                is_other = tl.load(keys + again, mask=is_open, other=0) != key
                kept = live & ((winner == position) | (is_open & (is_other | (again == position))))
                tl.store(is_kept + position, kept, mask=position < count)
