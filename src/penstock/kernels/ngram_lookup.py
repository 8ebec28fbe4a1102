"""One arc of a back-off language model for each of N queries, the whole back-off chain in one launch. Knows no search.

A query stops reading as soon as its label is found, where torch must follow every chain to its end.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers, strides and the sizes it is compiled for

import torch
import triton
import triton.language as tl

from penstock.fusion.automaton import Arcs
from penstock.kernels.contracts import NgramArcs

# A query is a chain of dependent reads, so many programs of few queries hide the wait better than few of many.
BLOCK_QUERIES = 64


@triton.jit(do_not_specialize=["queries"])
def _lookup_kernel(
    states, labels, arc_starts, arc_keys, arc_scores, arc_states, root_scores, root_states,
    backoff_scores, backoff_states, scores, next_states, queries,
    vocabulary: tl.constexpr, backoffs: tl.constexpr, halvings: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0) * block + tl.arange(0, block)
    mask = query < queries
    state = tl.load(states + query, mask=mask, other=0)
    label = tl.load(labels + query, mask=mask, other=0)
    paid = tl.zeros([block], tl.float32)
    score = tl.zeros([block], tl.float32)
    next_state = tl.zeros([block], tl.int64)
    is_open = mask
    for _ in range(backoffs):
        key = state * vocabulary + label
        low = tl.load(arc_starts + state, mask=is_open, other=0)
        end = tl.load(arc_starts + state + 1, mask=is_open, other=0)
        high = end
        for _ in range(halvings):
            middle = (low + high) // 2
            is_inside = is_open & (low < high)
            is_below = tl.load(arc_keys + middle, mask=is_inside, other=0) < key
            low = tl.where(is_inside & is_below, middle + 1, low)
            high = tl.where(is_inside & (is_below == 0), middle, high)
        is_inside = is_open & (low < end)
        is_found = is_inside & (tl.load(arc_keys + low, mask=is_inside, other=-1) == key)
        score = tl.where(is_found, paid + tl.load(arc_scores + low, mask=is_found, other=0.0), score)
        next_state = tl.where(is_found, tl.load(arc_states + low, mask=is_found, other=0), next_state)
        is_open = is_open & (is_found == 0)
        paid += tl.load(backoff_scores + state, mask=is_open, other=0.0)
        state = tl.load(backoff_states + state, mask=is_open, other=0)
    score = tl.where(is_open, paid + tl.load(root_scores + label, mask=is_open, other=0.0), score)
    next_state = tl.where(is_open, tl.load(root_states + label, mask=is_open, other=0), next_state)
    tl.store(scores + query, score, mask=mask)
    tl.store(next_states + query, next_state, mask=mask)


def take_arcs_by_kernel(
    arcs: NgramArcs, order: int, most_arcs: int, states: torch.Tensor, labels: torch.Tensor
) -> Arcs:
    """`torch_twins.take_arcs` in one launch; most_arcs: of one state, bounds the search."""
    states, labels = states.contiguous(), labels.contiguous()
    scores, next_states = torch.empty_like(states, dtype=torch.float32), torch.empty_like(states)
    if states.numel():
        _lookup_kernel[(triton.cdiv(states.numel(), BLOCK_QUERIES),)](
            states, labels, *arcs, scores, next_states, states.numel(), vocabulary=len(arcs.root_scores),
            backoffs=order - 1, halvings=most_arcs.bit_length(), block=BLOCK_QUERIES,
        )  # fmt: skip
    return Arcs(scores, next_states)
