"""The two passes of a frame over a decoding graph: kernels that follow arcs and closures, recombine and compact.

`penstock.kernels.graph_frame` launches them in order, and says what they have in common.

Recombination drops what is far from the best of equal states, then has two rounds of bids. The PyTorch reference is
`penstock.decoding.wfst.ragged.Recombination`: the same survivors among the entries within the beam, bit for bit,
because minima of integers do not depend on the order of threads. Entries beyond the beam do not bid: they are dearer
than all that count.
"""
# ruff: noqa: PLR0913, SIM102 - a kernel's arguments are pointers and sizes; some conditions are of the compiler

from typing import NamedTuple

import torch

from penstock.kernels.blocks import finite_least, lower_least, tl, triton
from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID
from penstock.kernels.spans import BLOCK, Spans, find_spans, store_block_spans


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
    by position; totals: [B] int64, entries of the row; least: [B] int32, see `kernels.blocks`; is_idle: [B] bool,
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
def _find_cells(
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
    first, second = _find_cells(first_table, second_table, row, key, cells, multiplier, first_shift, second_shift)
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


@triton.jit(do_not_specialize=["width", "idle_stride", "dead_state"], do_not_specialize_on_alignment=["is_idle"])
def token_degree_kernel(
    states, is_idle, degrees, ends, block_totals, least_of_arcs, least_of_closure, width, idle_stride, dead_state,
    no_cost: tl.constexpr, blocks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of tokens, row): arcs that each token follows."""
    number = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if number == 0:
        tl.store(least_of_arcs + row, no_cost)
        tl.store(least_of_closure + row, no_cost)
    token = number * block + tl.arange(0, block)
    state = tl.load(states + row * width + token, mask=token < width, other=0)
    is_live = (token < width) & (state != dead_state)
    idle = tl.load(is_idle + row * idle_stride) != 0
    degree = tl.load(degrees + state, mask=is_live & (idle == 0), other=0)
    degree = tl.where(is_live & idle, 1, degree).to(tl.int32)
    store_block_spans(ends + row * blocks * block, block_totals + row * blocks, number, degree, block)


@triton.jit(
    do_not_specialize=["width", "idle_stride", "idle_arc"], do_not_specialize_on_alignment=["is_idle", "offsets"]
)
def arc_kernel(
    states, token_costs, phrases, ends, block_totals, block_starts, totals, is_idle, arc_starts, arc_weights,
    arc_labels, arc_words, arc_pieces, label_costs, offsets, lm_weights, word_boosts, boost_rows, sources, arcs, costs,
    keys, pieces, least, width, idle_stride, idle_arc,
    has_boosts: tl.constexpr, has_phrases: tl.constexpr, entries: tl.constexpr, halvings: tl.constexpr,
    blocks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of arcs, row): the arcs of a row's tokens, and what the paths cost after them."""
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    if tl.program_id(0) * block >= total:
        return
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < total
    # 1) the arc at each place
    token, begin = find_spans(
        ends + row * entries, block_starts + row * (entries // block), place, mask, entries, halvings, block
    )
    state = tl.load(states + row * width + token, mask=mask, other=0)
    arc = tl.load(arc_starts + state, mask=mask, other=0) + place - begin
    arc = tl.where(tl.load(is_idle + row * idle_stride) != 0, idle_arc, arc)
    # 2) its cost
    weighted = tl.load(arc_weights + arc, mask=mask, other=0.0) * tl.load(lm_weights + row)
    cost = tl.load(token_costs + row * width + token, mask=mask, other=0.0) + weighted
    label = tl.load(arc_labels + arc, mask=mask, other=0)
    cost += tl.load(label_costs + tl.load(offsets + row) + label, mask=mask, other=0.0)
    if has_boosts:
        word = tl.load(arc_words + arc, mask=mask, other=0)
        cost -= tl.load(word_boosts + tl.load(boost_rows + row) + word, mask=mask, other=0.0)
    # 3) the phrase state before it, or the least cost
    here = row * blocks * block + place
    phrase = tl.zeros([block], tl.int64)
    if has_phrases:
        phrase = tl.load(phrases + row * width + token, mask=mask, other=0)
    tl.store(sources + here, token, mask=mask)
    tl.store(arcs + here, arc.to(tl.int32), mask=mask)
    tl.store(costs + here, cost, mask=mask)
    tl.store(keys + here, phrase, mask=mask)
    if has_phrases:
        piece = tl.load(arc_pieces + arc, mask=mask, other=0)
        tl.store(pieces + here, tl.maximum(piece, 0).to(tl.int64), mask=mask)
    else:
        lower_least(least + row, cost, mask)


@triton.jit
def phrase_kernel(
    costs, arcs, keys, totals, arc_pieces, scores, next_states, least, blocks: tl.constexpr, block: tl.constexpr
):
    """Programs (block of arcs, row): scores and next states of the phrase list, where a piece begins."""
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    if tl.program_id(0) * block >= total:
        return
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask, here = place < total, row * blocks * block + place
    arc = tl.load(arcs + here, mask=mask, other=0)
    is_piece = mask & (tl.load(arc_pieces + arc, mask=mask, other=-1) >= 0)
    cost = tl.load(costs + here, mask=mask, other=0.0) - tl.load(scores + here, mask=is_piece, other=0.0)
    tl.store(costs + here, cost, mask=mask)
    tl.store(keys + here, tl.load(next_states + here, mask=is_piece, other=0), mask=is_piece)
    lower_least(least + row, cost, mask)


@triton.jit(do_not_specialize=["idle_stride", "beam"], do_not_specialize_on_alignment=["is_idle"])
def arc_degree_kernel(
    costs, arcs, totals, is_idle, least, arc_targets, closure_degrees, bases, ends, block_totals, idle_stride, beam,
    blocks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of arcs, row): costs above the least; the closure entries after arcs within the beam."""
    number = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    lowest = finite_least(least + row)
    if number == 0:
        tl.store(bases + row, tl.load(bases + row) + lowest.to(tl.float64))
    if number * block >= total:
        tl.store(block_totals + row * blocks + number, total * 0)
        return
    place = number * block + tl.arange(0, block)
    mask, here = place < total, row * blocks * block + place
    cost = tl.load(costs + here, mask=mask, other=float("inf")) - lowest
    tl.store(costs + here, cost, mask=mask)
    is_near = mask & (cost <= beam)
    idle = tl.load(is_idle + row * idle_stride) != 0
    arc = tl.load(arcs + here, mask=is_near, other=0)
    target = tl.load(arc_targets + arc, mask=is_near, other=0)
    degree = tl.load(closure_degrees + target, mask=is_near & (idle == 0), other=0)
    # Without a frame a token stays in its state.
    degree = tl.where(is_near & idle, 1, degree).to(tl.int32)
    store_block_spans(ends + row * blocks * block, block_totals + row * blocks, number, degree, block)


@triton.jit(do_not_specialize=["width", "idle_stride"], do_not_specialize_on_alignment=["is_idle"])
def closure_kernel(
    states, arc_sources, arcs, arc_costs, arc_keys, ends, block_totals, block_starts, totals, is_idle, arc_targets,
    closure_starts, closure_targets, closure_weights, closure_words, lm_weights, word_boosts, boost_rows, sources,
    closures, costs, keys, first_table, second_table, least, width, idle_stride,
    has_boosts: tl.constexpr, halvings: tl.constexpr, blocks: tl.constexpr, cells: tl.constexpr,
    multiplier: tl.constexpr, first_shift: tl.constexpr, second_shift: tl.constexpr, no_bid: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Programs (block of closure entries, row): what the paths cost there; empties the cells of their states."""
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    if tl.program_id(0) * block >= total:
        return
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < total
    # 1) the closure entry at each place
    first = row * blocks * block
    emitting, begin = find_spans(
        ends + first, block_starts + row * blocks, place, mask, blocks * block, halvings, block
    )
    idle = tl.load(is_idle + row * idle_stride) != 0
    arc = tl.load(arcs + first + emitting, mask=mask, other=0)
    source = tl.load(arc_sources + first + emitting, mask=mask, other=0)
    target = tl.load(arc_targets + arc, mask=mask & (idle == 0), other=0)
    target = tl.where(idle, tl.load(states + row * width + source, mask=mask & idle, other=0), target)
    closure = tl.load(closure_starts + target, mask=mask, other=0) + place - begin
    # 2) its cost
    weighted = tl.load(closure_weights + closure, mask=mask, other=0.0) * tl.load(lm_weights + row)
    cost = tl.load(arc_costs + first + emitting, mask=mask, other=0.0) + weighted
    if has_boosts:
        word = tl.load(closure_words + closure, mask=mask, other=0)
        cost -= tl.load(word_boosts + tl.load(boost_rows + row) + word, mask=mask, other=0.0)
    lower_least(least + row, cost, mask)
    # 3) its states, and their cells
    key = tl.load(closure_targets + closure, mask=mask, other=0)
    key = key | (tl.load(arc_keys + first + emitting, mask=mask, other=0) << 32)
    tl.store(sources + first + place, emitting, mask=mask)
    tl.store(closures + first + place, closure.to(tl.int32), mask=mask)
    tl.store(costs + first + place, cost, mask=mask)
    tl.store(keys + first + place, key, mask=mask)
    one, two = _find_cells(first_table, second_table, row, key, cells, multiplier, first_shift, second_shift)
    nothing = tl.full([block], no_bid, tl.int64)
    tl.store(one, nothing, mask=mask)
    tl.store(two, nothing, mask=mask)


@triton.jit(do_not_specialize=["width", "active", "row_arcs", "dead_state"])
def compact_kernel(
    ends, block_totals, block_starts, totals, emitting_indices, closures, costs, keys, arc_sources, arcs, new_states,
    new_phrases, new_costs, link_sources, link_arcs, link_emitting, link_closures, is_live, width, active, row_arcs,
    dead_state,
    halvings: tl.constexpr, blocks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of tokens, row): the entries that go on, in order, and nothing after the last."""
    row = tl.program_id(1).to(tl.int64)
    total = tl.load(totals + row)
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < total
    first = row * blocks * block
    entry, _ = find_spans(ends + first, block_starts + row * blocks, place, mask, blocks * block, halvings, block)
    # 1) states and cost
    cost = tl.load(costs + first + entry, mask=mask, other=float("inf"))
    key = tl.load(keys + first + entry, mask=mask, other=0)
    closure = tl.load(closures + first + entry, mask=mask, other=0)
    # 2) the arc before it, and the token before that
    emitting = tl.load(emitting_indices + first + entry, mask=mask, other=0)
    arc = tl.load(arcs + first + emitting, mask=mask, other=0)
    source = row * width + tl.load(arc_sources + first + emitting, mask=mask, other=0)
    here, is_place = row * active + place, place < active
    tl.store(new_states + here, tl.where(mask, key & 0xFFFFFFFF, dead_state), mask=is_place)
    tl.store(new_phrases + here, key >> 32, mask=is_place)
    tl.store(new_costs + here, cost, mask=is_place)
    tl.store(link_sources + here, tl.where(mask, source, 0), mask=is_place)
    tl.store(link_arcs + here, arc.to(tl.int64), mask=is_place)
    tl.store(link_emitting + here, tl.where(mask, row * row_arcs + emitting, 0), mask=is_place)
    tl.store(link_closures + here, closure.to(tl.int64), mask=is_place)
    tl.store(is_live + here, mask, mask=is_place)
