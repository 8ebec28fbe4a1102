"""Spans: places of each row's entries, and which entries keep theirs, are those of the PyTorch reference."""

import pytest
import torch

from penstock.decoding.wfst.ragged import histogram_prune
from penstock.kernels.spans import BLOCK, Spans, empty_histogram, empty_spans, fit_spans

ROWS, ENTRIES = 4, 700


def case(seed: int, largest: int, costs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights 0 .. largest and costs of few values, [ROWS, ENTRIES]; the last row has no weight."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(largest + 1, (ROWS, ENTRIES), generator=generator)
    weights[-1] = 0
    return weights, torch.randint(costs, (ROWS, ENTRIES), generator=generator) / 8 + 0.001


def spans_of(weights: torch.Tensor, device: str) -> Spans:
    """Spans as kernels store them: blocks without weight keep what they had."""
    spans = empty_spans(ROWS, ENTRIES, torch.device(device))
    spans.ends.fill_(12345)
    padded = torch.nn.functional.pad(weights, (0, spans.entries - ENTRIES)).view(ROWS, -1, BLOCK)
    totals = padded.sum(2)
    spans.block_totals.copy_(totals)
    ends = padded.cumsum(2).int()
    used = (totals > 0).unsqueeze(2)
    spans.ends.copy_(torch.where(used, ends, 12345).view(ROWS, -1))
    return spans


def sources(spans: Spans, row: int) -> list[int]:
    """The entry of each place of a row."""
    ends = spans.ends[row].cpu().view(-1, BLOCK).long()
    before = torch.nn.functional.pad(ends, (1, 0))[:, :-1]
    weights = torch.where(spans.block_totals[row].cpu().unsqueeze(1) > 0, ends - before, 0).flatten()
    places = torch.repeat_interleave(weights).tolist()
    starts = spans.block_starts[row].cpu().tolist()
    assert starts == [sum(entry < block * BLOCK for entry in places) for block in range(len(starts))]
    assert len(places) == int(spans.totals[row])
    return places


@pytest.mark.parametrize(("largest", "costs"), [(1, 3), (1, 5000), (9, 40)])
@pytest.mark.parametrize("limit", [1, 60, 300, 10_000])
def test_entries_that_stay_are_those_of_the_reference(kernel_device, limit, largest, costs):
    weights, cost = case(limit + largest, largest, costs)
    rows = torch.arange(ROWS).repeat_interleave(ENTRIES)
    is_kept = histogram_prune(rows, cost.flatten(), weights.flatten(), limit, ROWS).view(ROWS, ENTRIES)
    spans, over = spans_of(weights, kernel_device), torch.full((ROWS,), 5, device=kernel_device)
    histogram = empty_histogram(ROWS, spans.ends.device)
    fit_spans(spans, cost.to(kernel_device), limit, histogram, over, ROWS)
    for row in range(ROWS):
        expected = torch.repeat_interleave(torch.where(is_kept[row], weights[row], 0))
        assert sources(spans, row) == expected.tolist()
    assert over.tolist() == [5 + int(total > limit) for total in weights.sum(1)]
