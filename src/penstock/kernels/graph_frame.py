"""One frame of a search over a decoding graph, in eleven launches where PyTorch takes some four hundred.

A program has a block of entries of one row and leaves early after the row's last one, so a frame costs what lives.
Memory is fixed, nothing waits for the host. The PyTorch reference is `penstock.decoding.wfst.frame_step.FrameStep`:
the same tokens in the same order, bit for bit; products are not fused with sums.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.kernels.blocks import NO_COST, triton
from penstock.kernels.capability import require
from penstock.kernels.contracts import GraphArcs, GraphBackpointers, GraphFrame, GraphTokens
from penstock.kernels.graph_passes import (
    Cells,
    arc_degree_kernel,
    arc_kernel,
    closure_kernel,
    compact_kernel,
    empty_cells,
    hash_sizes,
    phrase_kernel,
    recombine,
    token_degree_kernel,
)
from penstock.kernels.spans import BLOCK, Spans, empty_histogram, empty_spans, fit_spans

Phrases = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Scores float32 and next states int64 for states and labels, [n] int64 each; does not synchronize with the host."""


class _Entries(NamedTuple):
    """Followed arcs or closure entries, [B, W]."""

    spans: Spans
    """Closure entries of each arc; of closure entries, 1 where the entry goes on."""
    sources: torch.Tensor
    """int32, the token or the arc that it belongs to, by its place in the row."""
    numbers: torch.Tensor
    """int32, in the graph."""
    costs: torch.Tensor
    """float32"""
    keys: torch.Tensor
    """int64; of arcs the phrase state, of closure entries graph state and phrase state << 32."""


class FrameMemory:
    """The memory of a frame of up to `batch` rows; about 1 MB for each row at 16,384 arcs."""

    def __init__(self, batch: int, active: int, arcs: int, cells: int, device: torch.device):
        """active, arcs, cells: K tokens, A followed arcs and hash cells of a row.

        ValueError where kernels cannot run.
        """
        require(device)
        self.active, self.arcs = active, arcs
        self.token_spans = empty_spans(batch, active, device)
        self.followed, self.closed = (self._entries(batch, arcs, device) for _ in range(2))
        self.pieces = torch.zeros_like(self.followed.keys)
        self.cells: Cells = empty_cells(batch, cells, device)
        self.histogram = empty_histogram(batch, device)
        # Of the arcs, then of the closure entries.
        self.least = torch.full((2, batch), NO_COST, dtype=torch.int32, device=device)

    @staticmethod
    def _entries(batch: int, arcs: int, device: torch.device) -> _Entries:
        spans = empty_spans(batch, arcs, device)
        fields = (torch.zeros(spans.ends.shape, dtype=kind, device=device) for kind in _ENTRY_TYPES)
        return _Entries(spans, *fields)


_ENTRY_TYPES = (torch.int32, torch.int32, torch.float32, torch.int64)


class FusedFrame:
    """Takes frames of B rows."""

    def __init__(self, graph: GraphArcs, memory: FrameMemory, beam: float):
        """beam: nats above the least cost of the row."""
        self._graph, self._memory, self._beam = graph, memory, beam
        self._dead_state, self._idle_arc = len(graph.starts) - 1, len(graph.labels) - 1

    def __call__(
        self,
        tokens: GraphTokens,
        frame: GraphFrame,
        bases: torch.Tensor,
        narrowed: torch.Tensor,
        phrases: Phrases | None = None,
    ) -> tuple[GraphTokens, GraphBackpointers]:
        """Tokens after the frame [B, K], and where they come from.

        tokens: w at most K; bases: [B] float64, plus the least costs; narrowed: [B] int64, plus 1 for each pass in
        which a row has more arcs than A and follows those of its cheapest tokens; phrases: the phrase list's `advance`,
        None: no row has one.
        """
        memory, batch = self._memory, len(bases)
        # 1) arcs of each token; at most A of a row
        tokens = GraphTokens(*(field.contiguous() for field in tokens))
        self._count_arcs(tokens, frame)
        fit_spans(memory.token_spans, tokens.costs, memory.arcs, memory.histogram, narrowed, batch)
        # 2) cost + weight + label's cost - boost
        self._follow_arcs(tokens, frame, phrases)
        # 3) within the beam: closure of each arc's target; at most A entries of a row
        self._count_closure(frame, bases)
        fit_spans(memory.followed.spans, memory.followed.costs, memory.arcs, memory.histogram, narrowed, batch)
        self._follow_closure(tokens, frame)
        # 4) within the beam: recombine tokens of equal states; at most K of a row
        closed = memory.closed
        recombine(
            closed.keys, closed.costs, memory.followed.spans.totals, memory.least[1], frame.is_idle, self._beam,
            memory.cells, bases, closed.spans,
        )  # fmt: skip
        fit_spans(closed.spans, closed.costs, memory.active, memory.histogram, None, batch)
        # 5) the tokens that are left, together
        return self._compact(tokens, frame)

    def _count_arcs(self, tokens: GraphTokens, frame: GraphFrame) -> None:
        spans = self._memory.token_spans
        token_degree_kernel[(spans.block_totals.shape[1], len(frame.is_idle))](
            tokens.states, frame.is_idle, self._graph.degrees, spans.ends, spans.block_totals, *self._memory.least,
            tokens.states.shape[1], frame.is_idle.stride(0), self._dead_state, no_cost=NO_COST,
            blocks=spans.block_totals.shape[1], block=BLOCK,
        )  # fmt: skip

    def _follow_arcs(self, tokens: GraphTokens, frame: GraphFrame, phrases: Phrases | None) -> None:
        graph, spans, followed = self._graph, self._memory.token_spans, self._memory.followed
        blocks, batch = followed.spans.block_totals.shape[1], len(frame.is_idle)
        word_boosts, boost_rows, has_boosts = _boosts(frame)
        arc_kernel[(blocks, batch)](
            tokens.states, tokens.costs, tokens.phrases, *spans, frame.is_idle, graph.starts, graph.weights,
            graph.labels, graph.words, graph.pieces, frame.label_costs, frame.offsets, frame.lm_weights, word_boosts,
            boost_rows, followed.sources, followed.numbers, followed.costs, followed.keys, self._memory.pieces,
            self._memory.least[0], tokens.states.shape[1], frame.is_idle.stride(0), self._idle_arc,
            has_boosts=has_boosts, has_phrases=phrases is not None, entries=spans.entries, halvings=spans.halvings,
            blocks=blocks, block=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip
        if phrases is not None:
            # Also of entries that are not live: their states and labels are those of an earlier frame.
            scores, states = phrases(followed.keys[:batch].view(-1), self._memory.pieces[:batch].view(-1))
            phrase_kernel[(blocks, batch)](
                followed.costs, followed.numbers, followed.keys, spans.totals, graph.pieces, scores, states,
                self._memory.least[0], blocks=blocks, block=BLOCK,
            )  # fmt: skip

    def _count_closure(self, frame: GraphFrame, bases: torch.Tensor) -> None:
        followed, memory = self._memory.followed, self._memory
        blocks = followed.spans.block_totals.shape[1]
        arc_degree_kernel[(blocks, len(bases))](
            followed.costs, followed.numbers, memory.token_spans.totals, frame.is_idle, memory.least[0],
            self._graph.targets, self._graph.closure_degrees, bases, followed.spans.ends, followed.spans.block_totals,
            frame.is_idle.stride(0), self._beam, blocks=blocks, block=BLOCK,
        )  # fmt: skip

    def _follow_closure(self, tokens: GraphTokens, frame: GraphFrame) -> None:
        graph, followed, closed, memory = self._graph, self._memory.followed, self._memory.closed, self._memory
        blocks = closed.spans.block_totals.shape[1]
        word_boosts, boost_rows, has_boosts = _boosts(frame)
        closure_kernel[(blocks, len(frame.is_idle))](
            tokens.states, followed.sources, followed.numbers, followed.costs, followed.keys, *followed.spans,
            frame.is_idle, graph.targets, graph.closure_starts, graph.closure_targets, graph.closure_weights,
            graph.closure_words, frame.lm_weights, word_boosts, boost_rows, closed.sources, closed.numbers,
            closed.costs, closed.keys, *memory.cells, memory.least[1], tokens.states.shape[1], frame.is_idle.stride(0),
            has_boosts=has_boosts, halvings=followed.spans.halvings, blocks=blocks, **hash_sizes(memory.cells),
            block=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip

    def _compact(self, tokens: GraphTokens, frame: GraphFrame) -> tuple[GraphTokens, GraphBackpointers]:
        followed, closed, active = self._memory.followed, self._memory.closed, self._memory.active
        shape = len(frame.is_idle), active
        integers = torch.empty(6, *shape, dtype=torch.int64, device=frame.is_idle.device)
        costs = torch.empty(shape, dtype=torch.float32, device=integers.device)
        is_live = torch.empty(shape, dtype=torch.bool, device=integers.device)
        states, phrases, *pointers = integers
        after, links = GraphTokens(states, phrases, costs), GraphBackpointers._make([*pointers, is_live])
        compact_kernel[(triton.cdiv(active, BLOCK), shape[0])](
            *closed.spans, closed.sources, closed.numbers, closed.costs, closed.keys, followed.sources,
            followed.numbers, *after, *links, tokens.states.shape[1], active, self._memory.arcs, self._dead_state,
            halvings=closed.spans.halvings, blocks=closed.spans.block_totals.shape[1], block=BLOCK,
        )  # fmt: skip
        return after, links


def _boosts(frame: GraphFrame) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """The frame's boosts; without any, tensors that are not read."""
    if frame.word_boosts is None or frame.boost_rows is None:
        return frame.lm_weights, frame.offsets, False
    return frame.word_boosts, frame.boost_rows, True
