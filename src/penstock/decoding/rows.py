"""Trees of tensors with a leading row axis: what generic code does with a hypothesis's state without knowing it."""

from collections.abc import Callable

import torch


def map_rows(function: Callable[..., torch.Tensor], *trees):
    """Applies `function` to the tensors at the same place of each tree (tuples, named or not, nested; None stays)."""
    first = trees[0]
    if first is None:
        return None
    if not isinstance(first, tuple):
        return function(*trees)
    children = [map_rows(function, *same) for same in zip(*trees, strict=True)]
    return type(first)(*children) if hasattr(first, "_fields") else tuple(children)


def leaves(tree) -> list[torch.Tensor]:
    """The tensors of a tree, in order."""
    if not isinstance(tree, tuple):
        return [tree]
    return [tensor for child in tree for tensor in leaves(child)]


def gather_rows(tree, index: torch.Tensor):
    """Rows `index` [B, K] of the second axis: tensors [B, X, ...] -> [B, K, ...]."""
    return map_rows(lambda tensor: _take(tensor, index), tree)


def flatten_rows(tree):
    """[B, K, ...] -> [B * K, ...]"""
    return map_rows(lambda tensor: tensor.flatten(0, 1), tree)


def unflatten_rows(tree, beam_size: int):
    """[B * K, ...] -> [B, K, ...]"""
    return map_rows(lambda tensor: tensor.unflatten(0, (-1, beam_size)), tree)


def overwrite_rows(target, condition: torch.Tensor, new, old) -> None:
    """Fills the tensors of `target` [B, K, ...], which keep their storage.

    With rows of `new` where `condition` [B, K] holds, else with those of `old`.
    """
    for place, a, b in zip(leaves(target), leaves(new), leaves(old), strict=True):
        torch.where(condition.view(*condition.shape, *(1,) * (a.dim() - condition.dim())), a, b, out=place)


def copy_rows(target, source) -> None:
    """Overwrites the tensors of `target`, which keep their storage."""
    for old, new in zip(leaves(target), leaves(source), strict=True):
        old.copy_(new)


def _take(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    shape = (*index.shape, *(1,) * (tensor.dim() - 2))
    return tensor.gather(1, index.view(shape).expand(*index.shape, *tensor.shape[2:]))
