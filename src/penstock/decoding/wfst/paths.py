"""The end of a chunk: the best path, what all paths share, and the nodes that paths still need.

A tree of nodes is followed by pointer doubling: after n rounds a node's pointer is 2 ** n nodes up, so the rounds
needed are the logarithm of the longest path. Index 0 stands for the root, node i has index i + 1.
"""

from typing import NamedTuple

import torch

from penstock.decoding.sizes import WfstSizes
from penstock.decoding.wfst.backpointers import Ends, FlatNodes
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import FlatTokens
from penstock.decoding.wfst.ragged import Shapes
from penstock.decoding.wfst.state import NO_NODE, Nodes, Tokens
from penstock.kernels.contracts import NO_BID

_REACHED, _BEST = 1, 2
_LOW_32_BITS = 2**32 - 1
_MANY = 2**31


class BestPath(NamedTuple):
    """The best path of each row since the nodes that are stable."""

    pieces: torch.Tensor
    """[B, P] int32, as in `Nodes`; the fields are valid up to `lengths`."""
    words: torch.Tensor
    frames: torch.Tensor
    last_frames_before: torch.Tensor
    scores: torch.Tensor
    """float32"""
    lengths: torch.Tensor
    """[B] int64"""
    stable: torch.Tensor
    """[B] int64, nodes from the front that will not change: all paths have them."""
    last_frames: torch.Tensor
    """[B] int64, last frame of the last piece; -1 without one."""
    costs: torch.Tensor
    """[B] float64, of the whole path; with final weights where a row ends."""
    may_overflow: torch.Tensor
    """[B] int64, 1 where more nodes were made than there is memory for, needed or not (`decode_chunk`)."""


class Compacted(NamedTuple):
    """The start of the next chunk: fields of `WfstStates`."""

    tokens: Tokens
    token_counts: torch.Tensor
    nodes: Nodes
    node_counts: torch.Tensor
    dropped: torch.Tensor
    """[B] int64"""
    is_stored: torch.Tensor
    """[n] int64, of the chunk's last tokens: 1 where it goes on, 0 where it is dropped, -1 where there is none."""


class _Best(NamedTuple):
    """The best token of each row, [B]."""

    positions: torch.Tensor
    """int64; in range where there is none."""
    exists: torch.Tensor
    """bool"""
    costs: torch.Tensor
    """float64"""


class _Tree(NamedTuple):
    """All nodes, [N + 1]."""

    rows: torch.Tensor
    marks: torch.Tensor
    """int32: 0, _REACHED by a token, or _BEST: on the best path."""
    depths: torch.Tensor
    """int64, nodes from the root to here, itself included."""
    anchors: torch.Tensor
    """int64, depth of the deepest node of the best path on the way to here."""


class PathTracker:
    """Ends chunks of B rows."""

    def __init__(self, graph: DeviceGraph, shapes: Shapes, sizes: WfstSizes, batch: int, max_frames: int):
        """max_frames: of a chunk; not used where shapes are not fixed."""
        self._shapes, self._sizes, self._batch, self._dead_state = shapes, sizes, batch, graph.dead_state
        self._max_length = sizes.path_width(max_frames)
        self._rounds = (sizes.nodes + 2 * max_frames).bit_length()

    def finish(
        self,
        tokens: FlatTokens,
        ends: Ends,
        nodes: FlatNodes,
        node_counts: torch.Tensor,
        ending_costs: torch.Tensor,
        bases: torch.Tensor,
    ) -> tuple[BestPath, Compacted]:
        """node_counts: [B] int64, of `nodes`; ending_costs: [n] float32, the tokens' costs by which the best is chosen;
        infinite where there is none."""
        batch, sizes, is_live = self._batch, self._sizes, None
        if self._shapes.is_static:
            is_live = tokens.states != self._dead_state
            ends = ends._replace(nodes=torch.where(is_live, ends.nodes, NO_NODE))
        # 1) the best token of each row, and the tree of its nodes
        best = self._best_tokens(tokens.rows, ending_costs)
        best_nodes = torch.where(best.exists, ends.nodes.index_select(0, best.positions), NO_NODE)
        tree = self._tree(ends.nodes, nodes, best_nodes)
        lengths = tree.depths.index_select(0, best_nodes + 1)
        # 2) what all paths share, and what else must become stable for the rest to fit
        token_anchors = tree.anchors.index_select(0, ends.nodes + 1)
        anchors = token_anchors if is_live is None else torch.where(is_live, token_anchors, _MANY)
        shared = torch.full((batch,), _MANY, dtype=torch.int64, device=bases.device)
        shared.scatter_reduce_(0, tokens.rows, anchors, "amin")
        stable = self._stable(tree, torch.minimum(shared, lengths), lengths)
        last_frames = ends.last_frames.index_select(0, best.positions).long()
        fields = self._path(nodes, tree, lengths)
        may_overflow = self._may_overflow(tree, node_counts)
        path = BestPath._make((*fields, lengths, stable, last_frames, bases + best.costs, may_overflow))
        # 3) nodes of the paths that agree with it
        limits = stable.index_select(0, tree.rows)
        is_needed = (tree.marks > 0) & (tree.anchors >= limits) & (tree.depths > limits)
        stored, numbers, node_counts = self._stored_nodes(nodes, is_needed[1:])
        # 4) their tokens
        token_numbers = numbers.index_select(0, ends.nodes + 1)
        fits = (token_anchors >= stable.index_select(0, tokens.rows)) & (token_numbers < sizes.nodes)
        is_dropped = ~fits
        if is_live is not None:
            fits, is_dropped = fits & is_live, is_dropped & is_live
        dropped = torch.zeros_like(lengths).scatter_add_(0, tokens.rows, is_dropped.long())
        kept, token_counts = self._stored_tokens(tokens, ends._replace(nodes=token_numbers), fits)
        is_stored = fits.long() if is_live is None else torch.where(is_live, fits.long(), -1)
        return path, Compacted(kept, token_counts, stored, node_counts, dropped, is_stored)

    def _best_tokens(self, rows: torch.Tensor, costs: torch.Tensor) -> _Best:
        """The cheapest token of each row; ties by position."""
        bits = costs.view(torch.int32)
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers, ascending like the floats
        bids = (ordered.long() << 32) | torch.arange(len(rows), device=rows.device)
        least = torch.full((self._batch,), NO_BID, dtype=torch.int64, device=rows.device)
        least.scatter_reduce_(0, rows, bids, "amin")
        positions = (least & _LOW_32_BITS).clamp(max=len(rows) - 1)
        best_costs = costs.index_select(0, positions)
        return _Best(positions, (least < NO_BID) & (best_costs < torch.inf), best_costs.double())

    def _tree(self, token_nodes: torch.Tensor, nodes: FlatNodes, best_nodes: torch.Tensor) -> _Tree:
        root = torch.zeros(1, dtype=torch.int64, device=nodes.rows.device)
        parents = torch.cat([root, nodes.parents + 1])
        numbers = torch.arange(len(parents), device=root.device)
        marks = torch.zeros(len(parents), dtype=torch.int32, device=root.device)
        marks.index_fill_(0, token_nodes.long() + 1, _REACHED)
        marks.index_fill_(0, best_nodes.long() + 1, _BEST)
        # 1) marks of all nodes above a token's, and depths
        depths, jumps, rounds = (numbers > 0).long(), parents, 0
        while rounds < self._rounds if self._shapes.is_static else jumps.any():
            marks.scatter_reduce_(0, jumps, marks.clone(), "amax")
            depths = depths + depths.index_select(0, jumps)
            jumps = jumps.index_select(0, jumps)
            rounds += 1
        marks[:1].fill_(_BEST)
        # 2) from each node up to the best path
        jumps = torch.where(marks == _BEST, numbers, parents)
        for _ in range(rounds):
            jumps = jumps.index_select(0, jumps)
        return _Tree(torch.cat([root, nodes.rows]), marks, depths, depths.index_select(0, jumps))

    def _stable(self, tree: _Tree, shared: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Nodes of the best path that become stable, [B]: at least those that all share."""
        batch, sizes, is_reached = self._batch, self._sizes, tree.marks > 0
        least = torch.maximum(shared, lengths - sizes.unstable_nodes)
        if not self._shapes.is_static and len(tree.rows) <= sizes.nodes:
            return least
        # 1) nodes by the depth at which they leave the best path: [B, D]
        depths = (self._max_length if self._shapes.is_static else int(lengths.max())) + 1
        counts = torch.zeros(batch * depths, dtype=torch.int64, device=lengths.device)
        counts.scatter_add_(0, tree.rows * depths + tree.anchors.clamp(max=depths - 1), is_reached.long())
        counts = counts.view(batch, depths)
        counts[:1, :1] -= 1  # the root
        # 2) nodes that are left if the first d nodes of the best path become stable: those that leave it at d or later
        place = torch.arange(depths, device=lengths.device)
        is_on_path = (place > 0) & (place <= lengths.unsqueeze(1))
        left = counts.flip(1).cumsum(1).flip(1) - is_on_path.long()
        is_too_few = (left > sizes.nodes) & (place >= least.unsqueeze(1)) & (place < lengths.unsqueeze(1))
        return least + is_too_few.sum(dim=1)

    def _may_overflow(self, tree: _Tree, node_counts: torch.Tensor) -> torch.Tensor:
        """1 where tokens might be dropped if each frame were a chunk, [B] int64."""
        deepest = torch.zeros_like(node_counts).scatter_reduce_(0, tree.rows, tree.depths, "amax")
        return ((node_counts > self._sizes.nodes) | (deepest > self._sizes.unstable_nodes)).long()

    def _path(self, nodes: FlatNodes, tree: _Tree, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The nodes of the best path in order: the first fields of `BestPath`."""
        width = self._max_length if self._shapes.is_static else max(int(lengths.max()), 1)
        is_best = tree.marks[1:] == _BEST
        found, is_live, _ = self._shapes.select(is_best, self._batch * width)
        places = tree.depths[1:].index_select(0, found) - 1
        layout = _Layout(tree.rows[1:].index_select(0, found), places, is_live, self._batch, width)
        fields = nodes.pieces, nodes.words, nodes.frames, nodes.last_frames_before, nodes.scores
        return tuple(layout.place(field.index_select(0, found), 0) for field in fields)

    def _stored_nodes(self, nodes: FlatNodes, is_needed: torch.Tensor) -> tuple[Nodes, torch.Tensor, torch.Tensor]:
        """The nodes in the slots of their rows; the new numbers [N + 1] by the old ones, root first; counts [B]."""
        found, is_live, _ = self._shapes.select(is_needed, len(is_needed))
        rows = nodes.rows.index_select(0, found)
        if self._batch > 1 or is_live is not None:
            order = (rows if is_live is None else torch.where(is_live, rows, self._batch)).argsort(stable=True)
            found, rows = found.index_select(0, order), rows.index_select(0, order)
            is_live = None if is_live is None else is_live.index_select(0, order)
        ranks, counts = self._ranks(rows, is_live)
        numbers = torch.full((len(is_needed) + 2,), NO_NODE, dtype=torch.int32, device=rows.device)
        places = found + 1 if is_live is None else torch.where(is_live, found + 1, len(is_needed) + 1)
        numbers.index_copy_(0, places, ranks.int())
        numbers = numbers[:-1]
        width = self._sizes.nodes
        if not self._shapes.is_static:
            width = min(width, max(int(counts.max()), 1))
        layout = _Layout(rows, ranks, is_live, self._batch, width)
        parents = numbers.index_select(0, nodes.parents.index_select(0, found) + 1)
        fields = nodes.pieces, nodes.words, nodes.frames, nodes.last_frames_before, nodes.scores
        stored = [layout.place(field.index_select(0, found), 0) for field in fields]
        return Nodes(layout.place(parents, NO_NODE), *stored), numbers, counts.clamp(max=self._sizes.nodes)

    def _stored_tokens(self, tokens: FlatTokens, ends: Ends, is_kept: torch.Tensor) -> tuple[Tokens, torch.Tensor]:
        """The tokens in the slots of their rows, and counts [B]."""
        found, is_live, _ = self._shapes.select(is_kept, len(is_kept))
        rows = tokens.rows.index_select(0, found)
        ranks, counts = self._ranks(rows, is_live)
        width = self._sizes.max_active if self._shapes.is_static else max(int(counts.max()), 1)
        layout = _Layout(rows, ranks, is_live, self._batch, width)
        fields = tokens.states.int(), tokens.phrases.int(), tokens.costs, *ends
        return Tokens(*(layout.place(field.index_select(0, found), 0) for field in fields)), counts

    def _ranks(self, rows: torch.Tensor, is_live: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Places within each row of entries in order of rows, live ones first, and counts [B]."""
        ones = torch.ones_like(rows) if is_live is None else is_live.long()
        counts = torch.zeros(self._batch, dtype=torch.int64, device=rows.device).scatter_add_(0, rows, ones)
        first = counts.cumsum(0) - counts
        return torch.arange(len(rows), device=rows.device) - first.index_select(0, rows), counts


class _Layout:
    """Places of flat entries in rows of `width`; what is dead or does not fit goes nowhere."""

    def __init__(self, rows: torch.Tensor, places: torch.Tensor, is_live: torch.Tensor | None, batch: int, width: int):
        self._shape = batch, width
        # One row without gaps, whose entries are in order.
        self._is_dense = batch == 1 and is_live is None and len(rows) == width
        fits = places < width if is_live is None else (places < width) & is_live
        self._places = torch.where(fits, rows * width + places, batch * width)

    def place(self, values: torch.Tensor, fill: int) -> torch.Tensor:
        """Values [n] in their places, [B, width]; `fill` elsewhere."""
        batch, width = self._shape
        if self._is_dense:
            return values.view(1, width)
        flat = torch.full((batch * width + 1,), fill, dtype=values.dtype, device=values.device)
        return flat.index_copy_(0, self._places, values)[:-1].view(batch, width)
