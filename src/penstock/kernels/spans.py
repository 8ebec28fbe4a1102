"""Spans: entries of a row own consecutive places of a smaller or larger one, as a token owns the arcs of its state.

An entry's weight is the number of its places. Kernels write the sums of the weights by blocks; `fit_spans` adds the
blocks, and leaves the cheapest entries where a row has more places than there is room for. The PyTorch reference is
`penstock.decoding.wfst.ragged.histogram_prune` with a cumulative sum. Sums and minima of integers alone: any order of
threads gives the same bits.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers and the sizes it is compiled for

from typing import NamedTuple

import torch

from penstock.kernels.blocks import tl, triton, whole_blocks

BLOCK = 256
"""Entries of a block, and places that one program fills."""
_CHUNK = 2048
"""Entries that `fit_spans` reads at once: a row over its limit is read four times, each time from the cache."""
_BINS = 2048
"""Bins of the histogram over 11, then 10, then 10 of a cost's 31 bits."""


class Spans(NamedTuple):
    """Spans of B rows of W entries, in N blocks; W is N * BLOCK."""

    ends: torch.Tensor
    """[B, W] int32, sums of weights within blocks, each with its own; any value at least 0 in blocks without weight."""
    block_totals: torch.Tensor
    """[B, N] int64"""
    block_starts: torch.Tensor
    """[B, N] int64, places before a block: by `fit_spans`, as the next."""
    totals: torch.Tensor
    """[B] int64"""

    @property
    def entries(self) -> int:
        """W"""
        return self.ends.shape[1]

    @property
    def halvings(self) -> int:
        """Steps of a binary search over W entries."""
        return (self.entries - 1).bit_length()


def empty_spans(batch: int, entries: int, device: torch.device) -> Spans:
    """Memory for at least `entries` of each row."""
    width = whole_blocks(entries, BLOCK)
    totals, starts = (torch.zeros(batch, width // BLOCK, dtype=torch.int64, device=device) for _ in range(2))
    ends = torch.zeros(batch, width, dtype=torch.int32, device=device)
    return Spans(ends, totals, starts, torch.zeros(batch, dtype=torch.int64, device=device))


def empty_histogram(batch: int, device: torch.device) -> torch.Tensor:
    """Memory of `fit_spans`."""
    return torch.zeros(batch, _BINS, dtype=torch.int64, device=device)


def fit_spans(
    spans: Spans, costs: torch.Tensor, limit: int, histogram: torch.Tensor, over: torch.Tensor | None, batch: int
) -> None:
    """Completes the spans of the first `batch` rows; a row over the limit keeps those of its cheapest entries.

    costs: [B, w] float32, at least 0, contiguous, w at most W; entries after have no weight. An entry stays if the
    weights up to it, in order of cost and of position, are at most `limit`; others get an empty span. over: [B] int64,
    plus 1 for each row over the limit.
    """
    _fit_kernel[(batch,)](
        costs, *spans, histogram, spans.totals if over is None else over, costs.shape[-1], limit,
        blocks=spans.block_totals.shape[1], padded_blocks=triton.next_power_of_2(spans.block_totals.shape[1]),
        counts_over=over is not None, block=BLOCK, chunk=min(_CHUNK, triton.next_power_of_2(spans.entries)), bins=_BINS,
        num_warps=8,
    )  # fmt: skip


@triton.jit
def find_spans(ends, block_starts, place, mask, entries, halvings: tl.constexpr, block: tl.constexpr):
    """Entries that own the places, and where their spans begin; place: [N], below the row's total where mask."""
    low = tl.zeros_like(place)
    high = low + entries - 1
    # 1) the first entry whose span ends after the place
    for _ in range(halvings):
        middle = (low + high) // 2
        is_open = mask & (low < high)
        end = tl.load(ends + middle, mask=is_open, other=0) + tl.load(
            block_starts + middle // block, mask=is_open, other=0
        )
        is_behind = end > place
        high = tl.where(is_open & is_behind, middle, high)
        low = tl.where(is_open & (is_behind == 0), middle + 1, low)
    # 2) the end of the one before it
    has_before = mask & (low % block > 0)
    begin = tl.load(block_starts + low // block, mask=mask, other=0)
    return low, begin + tl.load(ends + low - 1, mask=has_before, other=0)


@triton.jit
def store_block_spans(ends, block_totals, number, weight, block: tl.constexpr):
    """Stores the spans of one block; weight: [block] int32. The pointers are the row's."""
    tl.store(ends + number * block + tl.arange(0, block), tl.cumsum(weight, 0))
    tl.store(block_totals + number, tl.sum(weight.to(tl.int64), 0))


@triton.jit
def _load_weights(ends, block_totals, entry, entries, block: tl.constexpr):
    """Weights of entries, from their spans; int64."""
    mask = entry < entries
    has_weight = mask & (tl.load(block_totals + entry // block, mask=mask, other=0) > 0)
    end = tl.load(ends + entry, mask=has_weight, other=0)
    return (end - tl.load(ends + entry - 1, mask=has_weight & (entry % block > 0), other=0)).to(tl.int64)


@triton.jit(do_not_specialize=["cost_width", "limit"])
def _fit_kernel(
    costs, ends, block_totals, block_starts, totals, histogram, over, cost_width, limit,
    blocks: tl.constexpr, padded_blocks: tl.constexpr, counts_over: tl.constexpr, block: tl.constexpr,
    chunk: tl.constexpr, bins: tl.constexpr,
):  # fmt: skip
    """Programs (row)."""
    row = tl.program_id(0).to(tl.int64)
    entries: tl.constexpr = blocks * block
    costs += row * cost_width
    ends += row * entries
    block_totals += row * blocks
    numbers = tl.arange(0, padded_blocks)
    sums = tl.load(block_totals + numbers, mask=numbers < blocks, other=0)
    if tl.sum(sums, 0) > limit:
        if counts_over:
            tl.store(over + row, tl.load(over + row) + 1)
        bin_cells = histogram + row * bins + tl.arange(0, bins)
        room = tl.full([], 0, tl.int64) + limit
        threshold = tl.full([], 0, tl.int32)
        # 1) the cost up to which all entries fit, digit by digit
        for digit in tl.static_range(3):
            tl.store(bin_cells, tl.zeros([bins], tl.int64))
            tl.debug_barrier()
            for start in range(0, entries, chunk):
                entry = start + tl.arange(0, chunk)
                weight = _load_weights(ends, block_totals, entry, entries, block)
                bits = tl.load(costs + entry, mask=weight > 0, other=0.0).to(tl.int32, bitcast=True)
                if digit == 0:
                    is_tied = weight > 0
                    value = bits >> 20
                else:
                    is_tied = (weight > 0) & ((bits >> (30 - 10 * digit)) == threshold)
                    value = (bits >> (20 - 10 * digit)) & 1023
                tl.atomic_add(histogram + row * bins + value, weight, mask=is_tied)
            tl.debug_barrier()
            in_bin = tl.load(bin_cells)
            is_whole = tl.cumsum(in_bin, 0) <= room
            room -= tl.sum(tl.where(is_whole, in_bin, 0), 0)
            threshold = threshold * 1024 + tl.sum(is_whole.to(tl.int32), 0)
            tl.debug_barrier()
        # 2) of entries of just that cost, those that come first
        used = tl.full([], 0, tl.int64)
        for start in range(0, entries, chunk):
            entry = start + tl.arange(0, chunk)
            weight = _load_weights(ends, block_totals, entry, entries, block)
            bits = tl.load(costs + entry, mask=weight > 0, other=0.0).to(tl.int32, bitcast=True)
            tied = tl.where(bits == threshold, weight, 0)
            fits = (bits < threshold) | ((bits == threshold) & (used + tl.cumsum(tied, 0) <= room))
            used += tl.sum(tied, 0)
            kept = tl.reshape(tl.where(fits, weight, 0).to(tl.int32), [chunk // block, block])
            # Every thread has read the weights before the first writes.
            tl.debug_barrier()
            tl.store(ends + entry, tl.reshape(tl.cumsum(kept, 1), [chunk]), mask=entry < entries)
            number = start // block + tl.arange(0, chunk // block)
            tl.store(block_totals + number, tl.sum(kept.to(tl.int64), 1), mask=number < blocks)
        tl.debug_barrier()
        sums = tl.load(block_totals + numbers, mask=numbers < blocks, other=0)
    # 3) places before each block
    tl.store(block_starts + row * blocks + numbers, tl.cumsum(sums, 0) - sums, mask=numbers < blocks)
    tl.store(totals + row, tl.sum(sums, 0))
