"""What a greedy hypothesis carries from one chunk to the next, in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.networks import PredictorState, TransducerNetwork


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


def select(condition: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Rows of `new` where `condition` [B] holds, else of `old`; both [B, ...]."""
    return torch.where(condition.view(-1, *(1,) * (new.dim() - 1)), new, old)


class GreedyState:
    """Per-stream greedy decoder state."""

    def __init__(self, network: TransducerNetwork, slots: int):
        self._fresh = fresh_rows(network, 1)
        self._slots = GreedyRows(*_map(lambda t: t.expand(slots, *t.shape[1:]).clone(), self._fresh))
        self.slots = slots

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream."""
        return sum(t.numel() * t.element_size() for t in _leaves(self._slots)) // self.slots

    def gather(self, slots: torch.Tensor) -> GreedyRows:
        """Copies the rows of `slots` [B] int64."""
        return GreedyRows(*_map(lambda t: t.index_select(0, slots), self._slots))

    def scatter(self, slots: torch.Tensor, rows: GreedyRows) -> None:
        """Writes the rows of `slots` [B] back."""
        for storage, new in zip(_leaves(self._slots), _leaves(rows), strict=True):
            storage.index_copy_(0, slots, new)

    def reset(self, slots: torch.Tensor) -> None:
        """Makes `slots` [B] hypotheses without labels."""
        for storage, fresh in zip(_leaves(self._slots), _leaves(self._fresh), strict=True):
            storage.index_copy_(0, slots, fresh.expand(len(slots), *fresh.shape[1:]))


def fresh_rows(network: TransducerNetwork, batch: int) -> GreedyRows:
    """`batch` hypotheses without labels."""
    start = network.start(batch)
    frame, seen, labels = (torch.zeros(batch, dtype=torch.int64, device=network.device) for _ in range(3))
    return GreedyRows(start.rows, start.state, frame, seen, labels)


def _map(function, rows: GreedyRows) -> list:
    return [tuple(map(function, field)) if isinstance(field, tuple) else function(field) for field in rows]


def _leaves(rows: GreedyRows) -> list[torch.Tensor]:
    leaves = []
    for field in rows:
        leaves += field if isinstance(field, tuple) else [field]
    return leaves
