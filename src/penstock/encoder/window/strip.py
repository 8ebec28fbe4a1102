"""Strip: the frames of all windows of a batch, one row after another, and their places between gaps of zeros."""

from collections.abc import Iterator, Sequence

import torch


class Strip:
    """The places of R rows in a strip [M, D] without padding, M the sum of their lengths.

    A convolution over time takes the frames with `gap` zeros before the first row and after every row, as
    [G + M, D]: so it runs once over all rows, and none reaches into another.
    """

    def __init__(self, lengths: Sequence[int], gap: int, device: torch.device):
        """lengths: encoder frames of each row, 0 or more; gap: frames that a convolution reads on either side."""
        self.lengths, self.gap = list(lengths), gap
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
