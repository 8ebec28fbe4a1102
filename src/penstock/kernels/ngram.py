"""Arcs of a back-off language model: by the kernel where there is one, in torch elsewhere."""

from functools import partial

import torch

from penstock.fusion.automaton import Arcs
from penstock.kernels.capability import choose
from penstock.kernels.contracts import NgramArcs
from penstock.kernels.torch_twins import take_arcs


class NgramLookup:
    """What `Automaton.advance` asks of a back-off model, over its flat arrays."""

    def __init__(self, arcs: NgramArcs, order: int, use_kernel: bool | None = None):
        """order: words of the longest n-gram, at least 1. use_kernel: None takes the kernel where the device runs it.

        Synchronises once, to find the state with the most arcs. ValueError where a kernel is asked for and cannot be.
        """
        if order < 1:
            raise ValueError(f"an n-gram model has an order of at least 1, not {order}")
        self.uses_kernel = choose(arcs.arc_keys.device, use_kernel)
        """For the log."""
        if self.uses_kernel:
            from penstock.kernels.ngram_lookup import take_arcs_by_kernel  # here: it imports the GPU language

            self._take = partial(take_arcs_by_kernel, arcs, order, int(arcs.arc_starts.diff().max()))
        else:
            self._take = partial(take_arcs, arcs, order)

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """One arc from each of `states` [...] int64 by `labels` of the same shape, int64, 0 .. V-1 (not checked)."""
        return self._take(states, labels)
