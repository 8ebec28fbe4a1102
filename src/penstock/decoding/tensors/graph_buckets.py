"""Prepared programs for bucketed batch sizes, and chunks cut to the length that the programs are prepared for.

Shared by the captured searches.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch

from penstock.graphs.program import Driver, Program, Runner

_log = logging.getLogger(__name__)

Workspace = TypeVar("Workspace")


@dataclass(frozen=True)
class Bucket(Generic[Workspace]):
    """One batch size."""

    workspace: Workspace
    run: Runner


class ChunkPart(NamedTuple):
    """At most t consecutive frames of a chunk of B streams."""

    projected_frames: torch.Tensor
    """[B, t, J]"""
    lengths: torch.Tensor
    """[B] int64, 0 .. t"""
    remaining: torch.Tensor
    """[B] int64, frames in later parts."""


class Buckets(Generic[Workspace]):
    """A program for each bucket size; a batch is padded to the smallest bucket that holds it."""

    def __init__(
        self,
        driver: Driver,
        max_batch: int,
        workspace: Callable[[int], Workspace],
        program: Callable[[Workspace], Program],
    ):
        """Prepares the buckets, the largest first, so that the smaller ones fit into its memory, and logs their number.

        Nothing is captured later: a capture waits for the device and empties the allocator's cache.
        """
        self._buckets: dict[int, Bucket[Workspace]] = {}
        for size in reversed(bucket_sizes(max_batch)):
            place = workspace(size)
            self._buckets[size] = Bucket(place, driver.prepare(program(place)))
        _log.info("CUDA graphs `%s`: a search is captured for %d batch sizes", driver.name, len(self._buckets))

    def fitting(self, batch: int) -> Bucket[Workspace] | None:
        """The smallest bucket that holds `batch` streams; None if the batch is larger than all."""
        return self._buckets.get(min((size for size in self._buckets if size >= batch), default=0))


BUCKETS = (16, 128, 512)
"""Batch sizes; each is memory and seconds at a start, and rows of padding cost little."""


def bucket_sizes(max_batch: int) -> list[int]:
    """Sizes of `BUCKETS` below `max_batch`, and `max_batch` itself."""
    return [*(size for size in BUCKETS if size < max_batch), max_batch]


def split_chunk(projected_frames: torch.Tensor, lengths: torch.Tensor, max_frames: int) -> Iterator[ChunkPart]:
    """Cuts a chunk [B, T, J] of `lengths` [B] into parts of at most `max_frames`; one part if T is 0."""
    for part in projected_frames.split(max_frames, dim=1):
        remaining = (lengths - part.shape[1]).clamp(min=0)
        yield ChunkPart(part, lengths - remaining, remaining)
        lengths = remaining
