"""One arc of a back-off language model for each of N queries, the whole back-off chain in one launch.

A query stops reading as soon as its label is found, where PyTorch follows every chain to its end. The PyTorch reference
is `penstock.scoring.ngram.lm.take_arcs`.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers, strides and the sizes it is compiled for

import torch

from penstock.kernels.blocks import tl, triton
from penstock.kernels.capability import require
from penstock.kernels.contracts import NgramArcs

# A query is a chain of dependent reads: a grid of programs with few queries each hides the latency best.
BLOCK_QUERIES = 64


class FusedNgramLookup:
    """Takes arcs of a back-off model by a kernel."""

    def __init__(self, arcs: NgramArcs, order: int):
        """order: words of the longest n-gram, at least 1. Synchronizes once, to find the maximum arcs of a state.

        Raises ValueError for another order, and where kernels cannot run.
        """
        if order < 1:
            raise ValueError(f"an n-gram model has an order of at least 1, not {order}")
        require(arcs.arc_keys.device)
        self._arcs = arcs
        self._backoffs = order - 1
        self._halvings = int(arcs.arc_starts.diff().max()).bit_length()

    def __call__(self, states: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape, int64, 0 .. V-1 (not checked).

        Returns scores [...] float32 with back-off penalties included, and the next states [...] int64. Never
        synchronizes with the host.
        """
        states, labels = states.contiguous(), labels.contiguous()
        scores, next_states = torch.empty_like(states, dtype=torch.float32), torch.empty_like(states)
        if states.numel():
            _lookup_kernel[(triton.cdiv(states.numel(), BLOCK_QUERIES),)](
                states, labels, *self._arcs, scores, next_states, states.numel(),
                vocabulary=len(self._arcs.root_scores), backoffs=self._backoffs, halvings=self._halvings,
                block=BLOCK_QUERIES,
            )  # fmt: skip
        return scores, next_states


@triton.jit(do_not_specialize=["queries"])
def _lookup_kernel(
    states, labels, arc_starts, arc_keys, arc_scores, arc_states, root_scores, root_states,
    backoff_scores, backoff_states, scores, next_states, queries,
    vocabulary: tl.constexpr, backoffs: tl.constexpr, halvings: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (block of queries): each query backs off until its label is found."""
    query = tl.program_id(0) * block + tl.arange(0, block)
    mask = query < queries
    state = tl.load(states + query, mask=mask, other=0)
    label = tl.load(labels + query, mask=mask, other=0)
    penalty = tl.zeros([block], tl.float32)
    score = tl.zeros([block], tl.float32)
    next_state = tl.zeros([block], tl.int64)
    is_open = mask
    for _ in range(backoffs):
        key = state * vocabulary + label
        low = tl.load(arc_starts + state, mask=is_open, other=0)
        end = tl.load(arc_starts + state + 1, mask=is_open, other=0)
        high = end
        # 1) binary search for the label among the arcs of the state
        for _ in range(halvings):
            middle = (low + high) // 2
            is_inside = is_open & (low < high)
            is_below = tl.load(arc_keys + middle, mask=is_inside, other=0) < key
            low = tl.where(is_inside & is_below, middle + 1, low)
            high = tl.where(is_inside & (is_below == 0), middle, high)
        is_inside = is_open & (low < end)
        is_found = is_inside & (tl.load(arc_keys + low, mask=is_inside, other=-1) == key)
        # 2) take the arc if found, else back off
        score = tl.where(is_found, penalty + tl.load(arc_scores + low, mask=is_found, other=0.0), score)
        next_state = tl.where(is_found, tl.load(arc_states + low, mask=is_found, other=0), next_state)
        is_open = is_open & (is_found == 0)
        penalty += tl.load(backoff_scores + state, mask=is_open, other=0.0)
        state = tl.load(backoff_states + state, mask=is_open, other=0)
    # 3) the empty context has every label
    score = tl.where(is_open, penalty + tl.load(root_scores + label, mask=is_open, other=0.0), score)
    next_state = tl.where(is_open, tl.load(root_states + label, mask=is_open, other=0), next_state)
    tl.store(scores + query, score, mask=mask)
    tl.store(next_states + query, next_state, mask=mask)
