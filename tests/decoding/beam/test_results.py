"""A beam's report is the same on the host, in one copy wherever no list is unusually long."""

import pytest
import torch

from penstock.decoding.beam.hyps import TimedLabels, TokenLists
from penstock.decoding.beam.memory import BeamUpdate
from penstock.decoding.beam.results import BeamReport, NBest
from penstock.decoding.tensors import tensor_tree
from penstock.decoding.tensors.tensor_tree import leaves

ROOM = 100


def lists(lengths: torch.Tensor) -> TokenLists:
    """Lists of distinct labels, of the shape of `lengths` and `ROOM`."""
    whole = torch.arange(lengths.numel() * ROOM).view(*lengths.shape, ROOM)
    return TokenLists(TimedLabels(whole, whole + 1, whole + 2, whole * 0.1, whole * -0.1), lengths)


def report(stable: int, unstable: int, alternative: int | None = None) -> BeamReport:
    """A report of two streams; the arguments are the lengths of their longest lists."""
    update = BeamUpdate(lists(torch.tensor([1, stable])), lists(torch.tensor([unstable, 0])), torch.tensor([4, 0]))
    best = None
    if alternative is not None:
        scores = torch.tensor([[-1.5, -2.25, -torch.inf], [-1e4, -torch.inf, -torch.inf]], dtype=torch.float64)
        lengths = torch.tensor([[2, alternative, 0], [0, 1, 0]])
        best = NBest(lists(lengths), scores, scores - 0.125, lengths + 7, lengths.argsort(dim=1))
    return BeamReport(update, torch.tensor([0, 3]), torch.tensor([2, 0]), best)


def tensors(one: BeamReport) -> list[torch.Tensor]:
    return leaves(tuple(part for part in one if part is not None))


@pytest.mark.parametrize(
    ("lengths", "copies"),
    [((3, 0), 1), ((32, 32, 32), 1), ((33, 5), 2), ((3, 33, 0), 2), ((3, 5, 33), 2), ((ROOM, 0, 7), 2)],
)
def test_it_is_copied_whole(monkeypatch, lengths, copies):
    blocks = []
    monkeypatch.setattr(tensor_tree, "copy_to_host", lambda block: blocks.append(block) or block)
    given = report(*lengths)
    found = given.fetched()
    assert len(blocks) == copies
    assert (found.best is None) == (given.best is None)
    room = found.update.stable.tokens.labels.shape[-1]
    assert room == max(32, *lengths) and found.max_length == max(lengths[0], 1, *lengths[1:])
    for one, whole in zip(tensors(found), tensors(given), strict=True):
        assert one.dtype == whole.dtype
        assert torch.equal(one, whole[..., : one.shape[-1]])
        assert one.shape[-1] in (room, whole.shape[-1])


def test_on_a_cpu_it_is_itself():
    given = report(3, 5, 2)
    assert given.to_host() is given
