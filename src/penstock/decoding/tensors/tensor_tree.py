"""Trees of tensors: nested tuples, named or not. Generic code moves a hypothesis's state without knowing its fields."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Tree = TypeVar("Tree")


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
