"""Recombination == dictionaries where no cell is contested. Kernels: `tests/kernels/test_graph_frame.py`."""

import pytest
import torch

from penstock.decoding.wfst.ragged import Recombination

CELLS = (4, 64, 4096)
"""Hardly any room, some contests, enough."""


def entries(seed: int, count: int = 700, batch: int = 3) -> tuple[torch.Tensor, ...]:
    """Rows, keys with phrase states, costs with ties, and which are live."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(batch, (count,), generator=generator).sort().values
    keys = torch.randint(60, (count,), generator=generator) | torch.randint(3, (count,), generator=generator) << 32
    costs = torch.randint(40, (count,), generator=generator) / 8
    is_live = torch.rand(count, generator=generator) < 0.8
    return rows, keys, torch.where(is_live, costs, torch.inf), is_live


def test_reference_is_the_dictionary():
    rows, keys, costs, is_live = entries(1)
    best: dict[tuple[int, int], int] = {}
    for place in range(len(rows)):
        key = int(rows[place]), int(keys[place])
        if is_live[place] and (key not in best or costs[place] < costs[best[key]]):
            best[key] = place
    found = Recombination(3, 1 << 20).survivors(rows, keys, costs, is_live)[0]
    assert found.nonzero().squeeze(1).tolist() == sorted(best.values())


@pytest.mark.parametrize("cells", CELLS)
def test_entries_without_a_cell_stay(cells):
    """The cheapest of each state is always among those that stay, and the search over what lives agrees."""
    rows, keys, costs, is_live = entries(2)
    found = Recombination(3, cells).survivors(rows, keys, costs, is_live)[0]
    enough = Recombination(3, 1 << 20).survivors(rows, keys, costs, is_live)[0]
    assert (enough <= found).all() and (found <= is_live).all()
    live = [field[is_live] for field in (rows, keys, costs)]
    assert torch.equal(Recombination(3, cells).survivors(*live, None)[0], found[is_live])
