"""Trees of tensors: nested tuples, named or not. Generic code moves a hypothesis's state without knowing its fields.

Between device and host a tree is copied as one block, through pinned memory, with one synchronization. `StateStore`
keeps the trees of all streams in slots.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from penstock.runtime import send_to_device

Tree = TypeVar("Tree")
_BITS_OF = {torch.float64: torch.int64, torch.float32: torch.int32, torch.int32: torch.int32}
States = TypeVar("States")


def map_tensors(function: Callable[..., torch.Tensor], *trees: Any) -> Any:
    """Applies `function` to the tensors at the same place of each tree; None stays None."""
    first_tree = trees[0]
    if first_tree is None:
        return None
    if not isinstance(first_tree, tuple):
        return function(*trees)
    children = [
        function(*same) if isinstance(same[0], torch.Tensor) else map_tensors(function, *same)
        for same in zip(*trees, strict=True)
    ]
    return type(first_tree)(*children) if hasattr(first_tree, "_fields") else tuple(children)


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree, in order."""
    if not isinstance(tree, tuple):
        return [tree]
    tensors: list[torch.Tensor] = []
    for child in tree:
        tensors += leaves(child) if isinstance(child, tuple) else [child]
    return tensors


def first(tree: Tree, batch: int) -> Tree:
    """The first `batch` rows of each tensor, in the same memory."""
    return map_tensors(lambda t: t[:batch], tree)


def gather(tree: Tree, index: torch.Tensor) -> Tree:
    """Selects along the second axis: tensors [B, X, ...] at `index` [B, K] int64 -> [B, K, ...]."""
    return map_tensors(lambda t: rows_at(t, index), tree)


def join_rows(parts: Sequence[Tree], counts: Sequence[torch.Tensor]) -> Tree:
    """Concatenates the first counts[i] [B] places of parts [B, M_i], all other places last; does not synchronize."""
    places = [torch.arange(leaves(part)[0].shape[1], device=counts[0].device) for part in parts]
    is_valid = torch.cat([at < count.unsqueeze(1) for at, count in zip(places, counts, strict=True)], dim=1)
    order = (~is_valid).long().argsort(dim=1, stable=True)
    return map_tensors(lambda *same: torch.cat(same, dim=1).gather(1, order), *parts)


def flatten(tree: Tree) -> Tree:
    """[B, K, ...] -> [B * K, ...]"""
    return map_tensors(lambda t: t.flatten(0, 1), tree)


def unflatten(tree: Tree, beam_size: int) -> Tree:
    """[B * K, ...] -> [B, K, ...]"""
    return map_tensors(lambda t: t.unflatten(0, (-1, beam_size)), tree)


def overwrite(target: Any, condition: torch.Tensor, new: Any, old: Any) -> None:
    """Writes `new` where `condition` holds, else `old`, into the tensors of `target`, which keep their storage.

    condition: bool, of the tensors' first axes, [B] or [B, K]. Tensors that are the same object in all three are left.
    """
    places = leaves(target)
    for place, a, b in zip(places, leaves(new), places if old is target else leaves(old), strict=True):
        if not (a is place and b is place):
            torch.where(condition.view(*condition.shape, *(1,) * (a.dim() - condition.dim())), a, b, out=place)


def copy_into(target: Any, source: Any) -> None:
    """Overwrites the tensors of `target`, which keep their storage."""
    for old, new in zip(leaves(target), leaves(source), strict=True):
        old.copy_(new)


def rows_at(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Selects along the second axis: [B, X, ...] at `index` [B, K] int64 -> [B, K, ...]."""
    if tensor.dim() > 2 and tensor.is_cpu:  # a CPU copies whole rows; a launch more takes a GPU longer than that saves
        starts = torch.arange(tensor.shape[0]).unsqueeze(1) * tensor.shape[1]
        rows = tensor.flatten(0, 1).index_select(0, (index + starts).flatten())
        return rows.view(*index.shape, *tensor.shape[2:])
    shape = (*index.shape, *(1,) * (tensor.dim() - 2))
    return tensor.gather(1, index.view(shape).expand(*index.shape, *tensor.shape[2:]))


def copy_to_host(block: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to the CPU; synchronizes once. A tensor on the CPU is returned as it is."""
    if block.device.type == "cpu":
        return block
    host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
    host.copy_(block, non_blocking=True)
    torch.cuda.current_stream(block.device).synchronize()
    return host


def tree_to_host(tree: Tree) -> Tree:
    """Copies a tree of tensors (int64, int32, float64, float32) to the CPU bit by bit, in one copy."""
    sizes = [tensor.numel() for tensor in leaves(tree)]
    block = torch.cat([_to_integers(tensor).flatten() for tensor in leaves(tree)])
    parts = iter(copy_to_host(block).split(sizes))
    return map_tensors(lambda tensor: _from_integers(next(parts), tensor.dtype).view(tensor.shape), tree)


def copy_to_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values as a tensor [n] on the device; does not synchronize."""
    return send_to_device(torch.tensor(values, dtype=dtype), device)


def _to_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as int64, of the same shape."""
    return tensor if tensor.dtype == torch.int64 else tensor.view(_BITS_OF[tensor.dtype]).long()


def _from_integers(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return part if dtype == torch.int64 else part.to(_BITS_OF[dtype]).view(dtype)


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
