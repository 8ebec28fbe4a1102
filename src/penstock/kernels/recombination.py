"""Recombination of tokens in equal states: drops what is far from the best, then two rounds of bids.

The PyTorch reference is `penstock.decoding.wfst.ragged.Recombination`: the same survivors among the entries
within the beam, bit for bit, because minima of integers do not depend on the order of threads. Entries beyond the beam
do not bid: they are dearer than all that count.
"""
# ruff: noqa: PLR0913, SIM102 - a kernel's arguments are pointers and sizes; some conditions are of the compiler

from typing import NamedTuple

import torch

from penstock.kernels.blocks import tl, triton
from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID
from penstock.kernels.row_minimum import finite_least
from penstock.kernels.spans import BLOCK, Spans, store_block_spans


class Cells(NamedTuple):
    """Two hash tables for each row, one for each round."""

    first: torch.Tensor
    """[B, cells] int64, as the next; an entry's cells must hold NO_BID before its row recombines."""
    second: torch.Tensor


def empty_cells(batch: int, cells: int, device: torch.device) -> Cells:
    """cells: of a row and round, a power of two."""
    return Cells(*torch.full((2, batch, cells), NO_BID, dtype=torch.int64, device=device))


def recombine(
    keys: torch.Tensor,
    costs: torch.Tensor,
    totals: torch.Tensor,
    least: torch.Tensor,
    is_idle: torch.Tensor,
    beam: float,
    cells: Cells,
    bases: torch.Tensor,
    kept: Spans,
) -> None:
    """Takes the least cost of each row off its entries and gives each survivor within the beam one place.

    keys: [B, W] int64, equal where states are; costs: [B, W] float32, becomes those above the least, at least 0; ties
    by position; totals: [B] int64, entries of the row; least: [B] int32, see `kernels.row_minimum`; is_idle: [B] bool,
    any stride: all entries within the beam survive; bases: [B] float64, plus the least cost; kept: still without
    `fit_spans`.
    """
    for step in range(3):
        _recombine_kernel[(kept.block_totals.shape[1], len(is_idle))](
            keys, costs, totals, least, is_idle, *cells, bases, kept.ends, kept.block_totals, is_idle.stride(0),
            beam, step=step, blocks=kept.block_totals.shape[1], **hash_sizes(cells), block=BLOCK,
        )  # fmt: skip


def hash_sizes(cells: Cells) -> dict[str, int]:
    """Constants with which kernels that find cells are compiled."""
    return {
        "cells": cells.first.shape[1], "multiplier": HASH_MULTIPLIER, "first_shift": HASH_SHIFTS[0],
        "second_shift": HASH_SHIFTS[1], "no_bid": NO_BID,
    }  # fmt: skip


@triton.jit
def find_cells(
    first, second, row, key, cells: tl.constexpr, multiplier: tl.constexpr, first_shift: tl.constexpr,
    second_shift: tl.constexpr,
):  # fmt: skip
    """Pointers to the keys' cells in either round."""
    hashed = key * multiplier
    first_cell = first + row * cells + ((hashed >> first_shift) & (cells - 1))
    return first_cell, second + row * cells + ((hashed >> second_shift) & (cells - 1))


@triton.jit(do_not_specialize=["idle_stride", "beam"], do_not_specialize_on_alignment=["is_idle"])
def _recombine_kernel(
    keys, costs, totals, least, is_idle, first_table, second_table, bases, ends, block_totals, idle_stride, beam,
    step: tl.constexpr, blocks: tl.constexpr, cells: tl.constexpr, multiplier: tl.constexpr, first_shift: tl.constexpr,
    second_shift: tl.constexpr, no_bid: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of entries, row). Steps: 0 and 1 are the rounds, 2 marks the survivors."""
    number = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    lowest = finite_least(least + row)
    if step == 0:
        if number == 0:
            tl.store(bases + row, tl.load(bases + row) + lowest.to(tl.float64))
    if step == 2:
        if number * block >= total:
            tl.store(block_totals + row * blocks + number, total * 0)
    if number * block >= total:
        return
    idle = tl.load(is_idle + row * idle_stride) != 0
    entry = number * block + tl.arange(0, block)
    mask = entry < total
    keys += row * blocks * block
    costs += row * blocks * block
    # 1) costs above the least of the row
    cost = tl.load(costs + entry, mask=mask, other=float("inf"))
    if step == 0:
        cost -= lowest
        tl.store(costs + entry, cost, mask=mask)
    is_near = mask & (cost <= beam)
    bids = is_near & (idle == 0)
    # 2) the entry's cell in either round, and its bid
    key = tl.load(keys + entry, mask=bids, other=0)
    first, second = find_cells(first_table, second_table, row, key, cells, multiplier, first_shift, second_shift)
    bid = (cost.to(tl.int32, bitcast=True).to(tl.int64) << 32) | entry
    if step == 0:
        tl.atomic_min(first, bid, mask=bids)
    else:
        # 3) the first round is lost to other states: bid again
        winner = tl.load(first, mask=bids, other=0) & 0xFFFFFFFF
        is_open = bids & (tl.load(keys + winner, mask=bids, other=0) != key)
        if step == 1:
            tl.atomic_min(second, bid, mask=is_open)
        else:
            # 4) winners of a round, and what lost both to other states
            again = tl.load(second, mask=is_open, other=0) & 0xFFFFFFFF
            is_other = tl.load(keys + again, mask=is_open, other=0) != key
            survives = (winner == entry) | (is_open & (is_other | (again == entry)))
            kept = is_near & (idle | survives)
            store_block_spans(
                ends + row * blocks * block, block_totals + row * blocks, number, kept.to(tl.int32), block
            )
