"""The backpointers of a chunk's tokens: the nodes that are made of them at its end, and the links of a lattice.

A frame costs no more than its search, and a chunk of any length the few operations here. Links are the backpointers of
the best paths, and the alternatives that recombination discards. An alternative within the lattice beam of the best
link to its token is kept, at most two for each token of a full row, cheapest first. So memory is fixed, and where no
row has more alternatives the links hold every path within the lattice beam of the best one.
"""

from typing import NamedTuple

import torch

from penstock.decoding.wfst.device_graph import NO_PIECE, DeviceGraph
from penstock.decoding.wfst.ragged import Selected, Shapes, histogram_prune
from penstock.decoding.wfst.state import NO_NODE
from penstock.scoring.wfst.graph_file import NO_WORD


class FlatNodes(NamedTuple):
    """Fields of `penstock.decoding.wfst.state.Nodes` for the whole batch, [n]."""

    rows: torch.Tensor
    """int64"""
    parents: torch.Tensor
    pieces: torch.Tensor
    words: torch.Tensor
    frames: torch.Tensor
    last_frames_before: torch.Tensor
    scores: torch.Tensor


class Ends(NamedTuple):
    """Per token, about its path, [n]: fields of `penstock.decoding.wfst.state.Tokens`."""

    nodes: torch.Tensor
    """int32, numbered for the whole batch."""
    last_frames: torch.Tensor
    """int32"""


class Backpointers(NamedTuple):
    """From the n tokens of a frame to those before it, in order of rows and emitting indices."""

    rows: torch.Tensor
    sources: torch.Tensor
    """The token of the frame before."""
    arcs: torch.Tensor
    emitting_indices: torch.Tensor
    """Numbers of the followed arcs, below `max_emitting`: tokens of one emitting arc differ in the closure after it."""
    closure_entries: torch.Tensor
    is_live: torch.Tensor | None
    """bool; None: all are."""


class ChunkTraceback(NamedTuple):
    """The frames of a chunk and what is needed to make their nodes."""

    graph: DeviceGraph
    shapes: Shapes
    backpointers: list[Backpointers]
    label_costs: torch.Tensor
    """[B, T, V + 2] float32"""
    frames_seen: torch.Tensor
    """[B] int64, before the chunk."""
    max_emitting: int

    def extend(self, before: FlatNodes, first: Ends) -> tuple[FlatNodes, Ends, torch.Tensor]:
        """The nodes before the chunk and after them those of all its frames, parents before children; its last tokens;
        how many nodes are new, [B] int64.

        first: the tokens before the chunk.
        """
        counts = torch.zeros_like(self.frames_seen)
        if not self.backpointers:
            return before, first, counts
        graph, fields, is_live = self.graph, [*zip(*self.backpointers, strict=True)], None
        rows, sources, arcs, emitting_indices, entries = map(torch.cat, fields[:-1])
        if fields[-1][0] is not None:
            is_live = torch.cat(fields[-1])
        # 1) tokens [n] of all frames, and their sources among those before the chunk [n0] and all others: 0 .. n0 + n
        frames, starts = self._frames_of_tokens(rows, len(first.nodes))
        sources = sources + starts.index_select(0, frames)
        places, count = torch.arange(len(rows), device=rows.device), len(first.nodes)
        # 2) where nodes begin: a piece or word on the first token of an arc, a word on the closure: [n, 2]
        has_node = graph.arc_has_node.index_select(0, arcs)
        words = graph.closure_words.index_select(0, entries)
        has_word = words != NO_WORD
        if is_live is not None:
            has_node, has_word = has_node & is_live, has_word & is_live
        keys = emitting_indices + frames * self.max_emitting
        is_first = torch.ones_like(has_node)
        torch.ne(keys[1:], keys[:-1], out=is_first[1:])
        begins_node = torch.stack([has_node & is_first, has_word], dim=1).flatten()
        found, is_found, _ = self.shapes.select(begins_node, len(begins_node))
        numbers = torch.full((len(begins_node) + 1,), NO_NODE, dtype=torch.int32, device=rows.device)
        new = torch.arange(len(before.rows), len(before.rows) + len(found), dtype=torch.int32, device=rows.device)
        numbers.index_copy_(0, found if is_found is None else torch.where(is_found, found, len(begins_node)), new)
        # 3) each token's own nodes: that of its arc, of the arc's first token, and that of its closure
        of_arc, of_word = numbers[:-1].view(-1, 2).unbind(1)
        of_arc = of_arc.index_select(0, torch.where(is_first, places, 0).cummax(0).values)
        if is_live is not None:
            of_arc = torch.where(has_node, of_arc, NO_NODE)
        own = torch.where(has_word, of_word, of_arc)
        # 4) nodes and last frames of all tokens, from the last token on the path that has its own
        moments = self.frames_seen.int().index_select(0, rows) + frames.int()
        is_piece = graph.arc_labels.index_select(0, arcs) < graph.blank
        nodes = self._inherited(torch.cat([first.nodes, own]), own != NO_NODE, sources, count)
        last_frames = self._inherited(torch.cat([first.last_frames, moments]), is_piece, sources, count)
        last = len(self.backpointers[-1].rows)
        ends = Ends(nodes[-last:], last_frames[-last:])
        # 5) fields of the nodes
        tokens, is_word = found >> 1, (found & 1).bool()
        rows, arcs, sources = (t.index_select(0, tokens) for t in (rows, arcs, sources))
        parents, arc_nodes = nodes.index_select(0, sources), of_arc.index_select(0, tokens)
        pieces = torch.where(is_word, NO_PIECE, graph.arc_pieces.index_select(0, arcs))
        starts = (rows * self.label_costs.shape[1] + frames.index_select(0, tokens)) * self.label_costs.shape[2]
        costs = self.label_costs.view(-1).index_select(0, starts + graph.arc_labels.index_select(0, arcs))
        made = FlatNodes(
            rows,
            torch.where(is_word & (arc_nodes != NO_NODE), arc_nodes, parents),
            pieces,
            torch.where(is_word, words.index_select(0, tokens), graph.arc_words.index_select(0, arcs)).int(),
            moments.index_select(0, tokens),
            last_frames.index_select(0, torch.where(is_word, tokens + count, sources)),
            torch.where(pieces >= 0, -costs, 0.0),
        )
        counts.scatter_add_(0, rows, torch.ones_like(rows) if is_found is None else is_found.long())
        return FlatNodes(*map(torch.cat, zip(before, made, strict=True))), ends, counts

    def _frames_of_tokens(self, rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Frames of the tokens, [n] int64, 0 .. T - 1; and where the tokens before each frame begin, [T] int64."""
        sizes = [len(one.rows) for one in self.backpointers]
        frames = torch.arange(len(sizes), device=rows.device)
        if self.shapes.is_static:  # all have one size
            starts = torch.where(frames > 0, count + (frames - 1) * sizes[0], 0)
            return frames.repeat_interleave(sizes[0]), starts
        starts = torch.tensor([0, count, *sizes[:-2]][: len(sizes)]).cumsum(0)
        return torch.repeat_interleave(frames, torch.tensor(sizes), output_size=len(rows)), starts

    def _inherited(
        self, values: torch.Tensor, has_own: torch.Tensor, sources: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Values [n0 + n], each that of the nearest token on the path, itself included, that has its own.

        After i rounds of pointer doubling a pointer is 2 ** i frames back.
        """
        places = torch.arange(len(values), device=values.device)
        jumps = torch.cat([places[:count], torch.where(has_own, places[count:], sources)])
        for _ in range((len(self.backpointers) - 1).bit_length()):
            jumps = jumps.index_select(0, jumps)
        return values.index_select(0, jumps)


class Links(NamedTuple):
    """Links to the tokens after a frame, [n] or of several frames, in order of frames and rows."""

    rows: torch.Tensor
    """int64"""
    targets: torch.Tensor
    """int64, the token's place in the flat tokens after the frame."""
    sources: torch.Tensor
    """int64, the same before the frame."""
    arcs: torch.Tensor
    closure_entries: torch.Tensor
    """int64"""
    excesses: torch.Tensor
    """float32, cost above the token's; 0 of the best link."""
    is_live: torch.Tensor | None
    """bool; None: all are."""


class Candidates(NamedTuple):
    """Tokens of a frame before recombination, [c], as `FrameStep` has them."""

    rows: torch.Tensor
    costs: torch.Tensor
    is_near: torch.Tensor
    """bool, True for those within the beam."""
    winners: torch.Tensor
    """int64, see `Recombination.winners`."""
    sources: torch.Tensor
    """[a] int64, of the emitting arcs: the token before the frame."""
    arcs: torch.Tensor
    """[a]"""
    emitting_indices: torch.Tensor
    """int64, of `sources` and `arcs`."""
    closure_entries: torch.Tensor


class LinkRecorder:
    """Keeps the alternatives of the rows that want links."""

    def __init__(self, shapes: Shapes, wants_links: torch.Tensor, beam: float, per_row: int):
        """wants_links: [B] bool; beam: nats above the best link; per_row: alternatives of a frame."""
        self._shapes, self._wants, self._beam, self._per_row = shapes, wants_links, beam, per_row
        self.frames: list[Links] = []

    def add(self, candidates: Candidates, kept: torch.Tensor, kept_is_live: torch.Tensor | None) -> None:
        """Adds a frame; kept: [n] int64, the candidates that are its tokens, in order; kept_is_live: bool or None."""
        rows, batch, device = candidates.rows, len(self._wants), kept.device
        # 1) the token that each candidate was recombined with, and the excess; -1 where it is no token of this frame
        numbers = torch.full((len(rows) + 1,), -1, dtype=torch.int64, device=device)
        places = kept if kept_is_live is None else torch.where(kept_is_live, kept, len(rows))
        numbers.index_copy_(0, places, torch.arange(len(kept), device=device))
        numbers = numbers[:-1]
        targets = numbers.index_select(0, candidates.winners)
        excesses = candidates.costs - candidates.costs.index_select(0, candidates.winners)
        is_alternative = candidates.is_near & (numbers < 0) & (targets >= 0) & (excesses <= self._beam)
        is_alternative &= self._wants.index_select(0, rows)
        # 2) the cheapest of each row
        counts = torch.zeros(batch, dtype=torch.int64, device=device).scatter_add_(0, rows, is_alternative.long())
        if self._shapes.is_static or bool((counts > self._per_row).any()):
            by_cost = torch.where(is_alternative, excesses, 0.0)
            is_alternative &= histogram_prune(rows, by_cost, is_alternative.long(), self._per_row, batch)
        alternatives: Selected = self._shapes.select(is_alternative, batch * self._per_row)
        fields = rows, targets, candidates.emitting_indices, candidates.closure_entries, excesses
        rows, targets, emitting, entries, excesses = (field.index_select(0, alternatives.positions) for field in fields)
        sources, arcs = (field.index_select(0, emitting) for field in (candidates.sources, candidates.arcs))
        self.frames.append(Links(rows, targets, sources, arcs, entries, excesses, alternatives.is_live))


class ChunkLinks(NamedTuple):
    """The links of a chunk's frames, with what the host needs to add them to lattices; of static shape where
    the search's are."""

    frames: torch.Tensor
    """[n] int64, 0 .. T - 1, of each link."""
    links: Links
    """[n], targets and sources as places within their row; best links before alternatives."""
    label_costs: torch.Tensor
    """[B, T, V + 2] float32"""
    first_frames: torch.Tensor
    """[B] int64, frames of the segment before the chunk."""
    token_rows: torch.Tensor
    """[m] int64, of the tokens after the chunk."""
    is_stored: torch.Tensor
    """[m] int64: 1 for tokens that go on, 0 for those that were dropped, -1 where there is none."""


def chunk_links(
    backpointers: list[Backpointers], recorder: LinkRecorder, first_places: torch.Tensor
) -> tuple[torch.Tensor, Links]:
    """Frames [n] and links [n] of a chunk; first_places: [B] int64, where rows of the tokens before it begin."""
    best = [
        Links(
            one.rows,
            torch.arange(len(one.rows), device=one.rows.device),
            one.sources,
            one.arcs,
            one.closure_entries,
            torch.zeros(len(one.rows), device=one.rows.device),
            one.is_live,
        )
        for one in backpointers
    ]
    if not best:
        nothing = first_places[:0]
        return nothing, Links._make([*[nothing] * 5, nothing.float(), None])
    frames, parts, starts = [], [], first_places
    for number, (links, alternatives) in enumerate(zip(best, recorder.frames, strict=True)):
        # 1) where rows begin in the tokens after the frame
        ones = torch.ones_like(links.rows) if links.is_live is None else links.is_live.long()
        counts = torch.zeros_like(first_places).scatter_add_(0, links.rows, ones)
        next_starts = counts.cumsum(0) - counts
        # 2) places within rows
        for part in (links, alternatives):
            targets = part.targets - next_starts.index_select(0, part.rows)
            sources = part.sources - starts.index_select(0, part.rows)
            parts.append(part._replace(targets=targets, sources=sources))
            frames.append(torch.full_like(part.rows, number))
        starts = next_starts
    *fields, is_live = zip(*parts, strict=True)
    live = None if is_live[0] is None else torch.cat(is_live)
    return torch.cat(frames), Links._make([*map(torch.cat, fields), live])
