"""What a greedy hypothesis carries from one chunk to the next, in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.networks import PredictorState, TransducerNetwork
from penstock.decoding.rows import leaves, map_rows
from penstock.fusion.fusion import FusionRows


class GreedyRows(NamedTuple):
    """State of B hypotheses. J joint width."""

    predictor_rows: torch.Tensor
    """[B, J], the prediction after the last label."""
    predictor_state: PredictorState
    """Tensors [B, ...]."""
    next_frame: torch.Tensor
    """[B] int64, absolute encoder frame at which the search stands; may lie beyond the frames seen (TDT)."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    labels_at_frame: torch.Tensor
    """[B] int64, labels already emitted at `next_frame`."""
    fusion: FusionRows
    """Tensors [B]; all 0 in a fresh row, which has no effect: no phrases, and a language model of weight 0."""


class GreedyState:
    """Per-stream greedy decoder state."""

    def __init__(self, network: TransducerNetwork, slots: int):
        self._fresh = fresh_rows(network, 1)
        self._slots = map_rows(lambda t: t.expand(slots, *t.shape[1:]).clone(), self._fresh)
        self.slots = slots

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream."""
        return sum(t.numel() * t.element_size() for t in leaves(self._slots)) // self.slots

    def gather(self, slots: torch.Tensor) -> GreedyRows:
        """Copies the rows of `slots` [B] int64."""
        return map_rows(lambda t: t.index_select(0, slots), self._slots)

    def scatter(self, slots: torch.Tensor, rows: GreedyRows) -> None:
        """Writes the rows of `slots` [B] back."""
        for storage, new in zip(leaves(self._slots), leaves(rows), strict=True):
            storage.index_copy_(0, slots, new)

    def reset(self, slots: torch.Tensor, fusion: FusionRows | None = None) -> None:
        """Makes `slots` [B] hypotheses without labels; fusion: what their streams chose, [B], None for nothing."""
        fresh = map_rows(lambda t: t.expand(len(slots), *t.shape[1:]), self._fresh)
        self.scatter(slots, fresh if fusion is None else fresh._replace(fusion=fusion))


def fresh_rows(network: TransducerNetwork, batch: int) -> GreedyRows:
    """`batch` hypotheses without labels, without language model and phrases."""
    start = network.start(batch)

    def zeros(dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(batch, dtype=dtype, device=network.device)

    fusion = FusionRows(zeros(), zeros(), zeros(torch.float32))
    return GreedyRows(start.rows, start.state, zeros(), zeros(), zeros(), fusion)
