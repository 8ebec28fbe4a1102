"""Histogram pruning: the cheapest entries of each row, exactly, in integers, so that any order of threads agrees."""

import torch

_DIGITS = ((20, 2048), (10, 1024), (0, 1024))
"""Shift and bins of the three digits of a cost's 31 bits."""


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
