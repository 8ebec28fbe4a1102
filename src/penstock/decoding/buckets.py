"""Programs prepared for batches up to a size, and chunks cut to a length: what captured searches have in common.

Knows no search and not how a driver works.
"""

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import torch

from penstock.graphs.driver import Driver, Runner
from penstock.graphs.program import Program

Workspace = TypeVar("Workspace")


class Bucket(NamedTuple, Generic[Workspace]):
    """One batch size."""

    workspace: Workspace
    run: Runner


class Piece(NamedTuple):
    """Part of a chunk of B streams."""

    frame_rows: torch.Tensor
    """[B, t, J]"""
    lengths: torch.Tensor
    """[B] int64, 0 .. t"""
    left: torch.Tensor
    """[B] int64, frames that later pieces have."""


class Buckets(Generic[Workspace]):
    """A program for each bucket size; a batch is to be filled up to the smallest that fits."""

    def __init__(
        self,
        driver: Driver,
        max_batch: int,
        workspace: Callable[[int], Workspace],
        program: Callable[[Workspace], Program],
    ):
        """Prepares them, the largest first, so that the smaller ones fit into its memory."""
        self._buckets: dict[int, Bucket[Workspace]] = {}
        for size in reversed(bucket_sizes(max_batch)):
            place = workspace(size)
            self._buckets[size] = Bucket(place, driver.prepare(program(place)))

    def fitting(self, batch: int) -> Bucket[Workspace] | None:
        """The smallest that holds `batch` streams; None if none does."""
        return self._buckets.get(min((size for size in self._buckets if size >= batch), default=0))


def bucket_sizes(max_batch: int) -> list[int]:
    """1, 2, 4, ... and `max_batch` itself."""
    sizes = [1 << power for power in range((max_batch - 1).bit_length())]
    return [*sizes, max_batch]


def pieces_of(frame_rows: torch.Tensor, lengths: torch.Tensor, frames: int) -> Iterator[Piece]:
    """Cuts a chunk [B, T, J] of `lengths` [B] into pieces of at most `frames`; one if T is 0."""
    for piece in frame_rows.split(frames, dim=1):
        left = (lengths - piece.shape[1]).clamp(min=0)
        yield Piece(piece, lengths - left, left)
        lengths = left
