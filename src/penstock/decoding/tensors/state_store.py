"""StateStore: the search states of all streams, one slot each, on the device. Base of the greedy and beam stores."""

import copy
from typing import Generic, TypeVar

import torch

from penstock.decoding.tensors.tensor_tree import leaves, map_tensors

States = TypeVar("States")


class StateStore(Generic[States]):
    """States of S streams: a tree of tensors [S, ...]; a search step gathers the B slots of its batch."""

    def __init__(self, fresh: States, slots: int):
        """fresh: the state of a new stream, tensors [1, ...]; all `slots` begin with it."""
        self._fresh = fresh
        self._states: States = map_tensors(lambda t: t.expand(slots, *t.shape[1:]).clone(), fresh)
        self._leaves = leaves(self._states)
        self.slots = slots
        self.device = leaves(fresh)[0].device

    def _sharing(self, states: States) -> "StateStore[States]":
        """A store of some of these tensors, in the same memory."""
        store = copy.copy(self)
        store._states, store._leaves = states, leaves(states)
        return store

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream."""
        return sum(t.numel() * t.element_size() for t in self._leaves) // self.slots

    def gather(self, slots: torch.Tensor) -> States:
        """Copies the states of `slots` [B] int64, tensors [B, ...]."""
        return map_tensors(lambda t: t.index_select(0, slots), self._states)

    def scatter(self, slots: torch.Tensor, states: States) -> None:
        """Writes the states [B, ...] of `slots` [B] int64 back."""
        for storage, new in zip(self._leaves, leaves(states), strict=True):
            storage.index_copy_(0, slots, new)

    def _fresh_states(self, batch: int) -> States:
        """States of `batch` new streams; views of one row."""
        return map_tensors(lambda t: t.expand(batch, *t.shape[1:]), self._fresh)
