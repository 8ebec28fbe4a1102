"""Strip: the frames of all windows of a batch, one row after another, and their places between gaps of zeros."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

LEAST_FILLED = 0.5
"""A group has no row shorter than this share of its longest: attention is a small part of the work."""


class RowGroup(NamedTuple):
    """R rows of a strip as a batch, each padded to L frames."""

    lengths: list[int]
    """Frames of each row, the longest first."""
    frames: torch.Tensor
    """[N] int64, the places of all frames of the rows in the strip."""
    padded: torch.Tensor
    """[R * L] int64, the place that each frame of the batch is read from; after a row's end any."""
    own: torch.Tensor
    """[N] int64, the places of `frames` in `padded`."""
    is_padding: torch.Tensor | None
    """[R, L], True after a row's end; None if all rows have L frames."""


class Strip:
    """The places of R rows in a strip [M, D] without padding, M the sum of their lengths.

    A convolution over time takes the frames with `gap` zeros before the first row and after every row, as
    [G + M, D]: so it runs once over all rows, and none reaches into another.
    """

    def __init__(self, lengths: Sequence[int], gap: int, device: torch.device):
        """lengths: encoder frames of each row, 0 or more; gap: frames that a convolution reads on either side."""
        self.lengths, self.gap, self._device = list(lengths), gap, device
        self.frames = sum(self.lengths)
        """M"""
        self.padded_frames = self.frames + gap * (len(self.lengths) + 1)
        """G + M"""
        rows = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths, dtype=torch.int64))
        places = torch.arange(self.frames) + gap * (rows + 1)
        self._host_places: list[int] = places.tolist()
        self.places = places.to(device)
        """[M] int64, the place of each frame among the zeros."""
        is_zero = torch.ones(self.padded_frames, dtype=torch.bool).index_fill_(0, places, False)
        self.zeros = is_zero.nonzero().flatten().to(device)
        """[G] int64, the places of the zeros."""

    def rows(self) -> Iterator[slice]:
        """The frames of each row."""
        begin = 0
        for length in self.lengths:
            yield slice(begin, begin + length)
            begin += length

    def groups(self, numbers: Sequence[int], most_rows: Callable[[int], int]) -> Iterator[slice | RowGroup]:
        """Groups the rows of these numbers by length, without empty ones; the frames of one that stays alone.

        most_rows: of a group whose longest row has this many frames.
        """
        rows = list(self.rows())
        left = sorted((number for number in numbers if self.lengths[number]), key=lambda n: -self.lengths[n])
        while left:
            longest = self.lengths[left[0]]
            most = max(most_rows(longest), 1)
            chosen = [number for number in left[:most] if self.lengths[number] >= LEAST_FILLED * longest]
            yield self._group([rows[number] for number in chosen], longest) if len(chosen) > 1 else rows[left[0]]
            left = left[len(chosen) :]

    def _group(self, rows: Sequence[slice], longest: int) -> RowGroup:
        begins, lengths = torch.tensor([(row.start, row.stop - row.start) for row in rows]).T
        steps = torch.arange(longest)
        is_own = steps < lengths[:, None]
        places = begins[:, None] + torch.where(is_own, steps, 0)
        own = is_own.flatten().nonzero().flatten()
        has_padding = bool((lengths < longest).any())
        return RowGroup(
            lengths.tolist(), places.flatten()[own].to(self._device), places.flatten().to(self._device),
            own.to(self._device), (~is_own).to(self._device) if has_padding else None,
        )  # fmt: skip

    def blocks(self, size: int) -> Iterator[slice]:
        """All frames, `size` at a time, whichever row they belong to."""
        for begin in range(0, self.frames, size):
            yield slice(begin, min(begin + size, self.frames))

    def reach(self, block: slice) -> slice:
        """What the convolution of a block reads, as places among the zeros."""
        return slice(self._host_places[block.start] - self.gap, self._host_places[block.stop - 1] + self.gap + 1)

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The rows [T, D] of x [M, D]."""
        return list(x.split(self.lengths))
