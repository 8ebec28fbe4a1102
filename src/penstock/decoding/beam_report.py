"""BeamReport: all that a chunk of beam search has for the host, which goes there in one copy. Knows no search."""

from typing import NamedTuple

import torch

from penstock.decoding.beam_results import BeamUpdate, NBest
from penstock.decoding.host_copy import tree_to_host

_EXPECTED_LABELS = 32


class BeamReport(NamedTuple):
    """All that the host is told of one chunk of B streams."""

    update: BeamUpdate
    forced_on: torch.Tensor
    """[B] int64, as in `BeamRows`."""
    dropped: torch.Tensor
    """[B] int64, as in `BeamRows`."""
    best: NBest | None = None
    """Where some stream has ended."""

    def to_host(self) -> "BeamReport":
        """The same on the CPU, perhaps with less room for labels; synchronises.

        One copy, unless some row has more labels than expected: there may be room for hundreds.
        """
        return self if self.dropped.device.type == "cpu" else self.fetched()

    def fetched(self) -> "BeamReport":
        """`to_host` for any device."""
        host = self.copied(_EXPECTED_LABELS)
        return host if host.longest <= _EXPECTED_LABELS else self.copied(host.longest)

    def copied(self, labels: int) -> "BeamReport":
        """Everything with the first `labels` of each list, as one block."""
        stable, tail = self.update.stable.first(labels), self.update.tail.first(labels)
        parts = [self.update._replace(stable=stable, tail=tail), self.forced_on, self.dropped]
        if self.best is not None:
            parts.append(self.best._replace(tails=self.best.tails.first(labels)))
        return BeamReport(*tree_to_host(tuple(parts)))

    @property
    def longest(self) -> int:
        """Labels of the longest list; for a report on the host."""
        lists = [self.update.stable, self.update.tail, *([] if self.best is None else [self.best.tails])]
        return max(int(one.lengths.max()) for one in lists)
