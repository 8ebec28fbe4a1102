"""The links of a lattice: the backpointers of the best paths, and the alternatives that recombination discards.

An alternative within the lattice beam of the best link to its token is kept, at most two for each token of a full row,
cheapest first. So memory is fixed, and where no row has more alternatives the links hold every path within the lattice
beam of the best one.
"""

from typing import NamedTuple

import torch

from penstock.decoding.wfst.backpointers import Backpointers
from penstock.decoding.wfst.pruning import histogram_prune
from penstock.decoding.wfst.shapes import Selected, Shapes


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
        """One of each frame."""

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
