"""One frame of all rows: follow arcs, prune, follow the closure, recombine, keep the best (docs/wfst.md).

All tokens of a batch are flat tensors, those of a row together, rows in order. Order within a row, and with it every
tie, depends on the row alone. Nothing here waits for the host where shapes are fixed. `FusedFrameStep` does the same by
kernels, in a few launches.
"""

from typing import NamedTuple

import torch

from penstock.decoding.sizes import WfstSizes
from penstock.decoding.wfst.backpointers import Backpointers, Candidates, LinkRecorder
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.ragged import Expansion, Recombination, Shapes, histogram_prune
from penstock.kernels.contracts import GraphArcs, GraphFrame, GraphTokens
from penstock.kernels.graph_frame import FrameMemory, FusedFrame
from penstock.scoring.automaton import Automaton


class FlatTokens(NamedTuple):
    """Fields of `penstock.decoding.wfst.state.Tokens`, [n], without their `trace.Ends`."""

    rows: torch.Tensor
    """int64, ascending where alive."""
    states: torch.Tensor
    """int64; the graph's `dead_state` where there is no token."""
    phrases: torch.Tensor
    """int64"""
    costs: torch.Tensor
    """float32; infinite where there is no token."""


class Frame(NamedTuple):
    """A frame of B rows."""

    offsets: torch.Tensor
    """[B] int64, where the row's costs of labels begin in the chunk's."""
    is_idle: torch.Tensor | None
    """[B] bool, True where the row takes no frame; None: all do."""


class StreamBoosts(NamedTuple):
    """The boosts of the rows of a batch."""

    words: torch.Tensor
    """[S, W] float32, boosts of words by row of the table."""
    table_rows: torch.Tensor
    """[B] int64, 0 .. S - 1"""
    phrases: Automaton | None
    """The automaton of the tokens' phrase states; None: no row has phrases."""


class FrameStep:
    """Takes frames of one chunk."""

    def __init__(
        self,
        graph: DeviceGraph,
        shapes: Shapes,
        recombination: Recombination,
        sizes: WfstSizes,
        beam: float,
        batch: int,
    ):
        self._graph, self._shapes, self._recombination, self._sizes = graph, shapes, recombination, sizes
        self._beam, self._batch = beam, batch

    def begin(
        self,
        label_costs: torch.Tensor,
        lm_weights: torch.Tensor,
        bases: torch.Tensor,
        boosts: StreamBoosts | None,
        recorder: LinkRecorder | None = None,
    ) -> None:
        """Starts a chunk; recorder: of rows that want links, None where no row does.

        label_costs: [m] float32, of all frames: negative log-probabilities of the labels, of blank and of the graph's
        `idle_label`, one row and frame after the other; lm_weights: [B] float32; bases: [B] float64, of the best
        tokens.
        """
        self._label_costs, self._lm_weights, self._boosts = label_costs, lm_weights, boosts
        self._recorder = recorder
        # Numbers as tensors: torch makes one of a Python number at every use.
        self._no_phrase, self._half, self._low_half = (
            torch.full((), number, dtype=torch.int64, device=lm_weights.device) for number in (0, 32, 2**32 - 1)
        )
        self._beam_width = torch.full((), self._beam, device=lm_weights.device)
        if boosts is not None:  # the table as one row, and where the rows of the batch begin, in the upper half
            self._boost_table = boosts.words.view(-1)
            self._boost_rows = (boosts.table_rows * boosts.words.shape[1]) << 32
        self._lm_weight: torch.Tensor | None = None  # one number for all rows, where the host knows that they agree
        if not self._shapes.is_static and bool((lm_weights == lm_weights[:1]).all()):
            self._lm_weight = lm_weights[0]
        self.backpointers: list[Backpointers] = []
        """The origin of the tokens of each frame."""
        self.bases = bases.clone()
        """[B] float64, costs taken off the tokens."""
        self.narrowed = torch.zeros(self._batch, dtype=torch.int64, device=lm_weights.device)
        """[B], passes that followed fewer arcs than the beam holds."""

    def __call__(self, tokens: FlatTokens, frame: Frame) -> FlatTokens:
        """The tokens after a frame."""
        graph, shapes, batch, idle = self._graph, self._shapes, self._batch, frame.is_idle
        # 1) emitting arcs of each token, [a]; in a row without a frame each token takes the idle arc
        starts, degrees = (t.index_select(0, tokens.states) for t in (graph.arc_starts, graph.degrees))
        if idle is not None:
            idle_tokens = idle.index_select(0, tokens.rows)
            starts = torch.where(idle_tokens, graph.idle_arc, starts)
            degrees = torch.where(idle_tokens, (tokens.states != graph.dead_state).long(), degrees)
        sources, arcs, is_live = self._expand(tokens.rows, tokens.costs, starts, degrees)
        # 2) cost + weight + label's cost - boost
        rows = tokens.rows.index_select(0, sources)
        costs = graph.arc_weights.index_select(0, arcs).mul_(self._weights_of(rows))
        costs += tokens.costs.index_select(0, sources)
        label_costs, word_boosts = self._of_labels(frame, rows, arcs)
        costs += label_costs
        phrases = None
        if word_boosts is not None:
            costs -= word_boosts
            costs, phrases = self._boost_phrases(costs, arcs, sources, tokens.phrases)
        # 3) beam: relative to the least of the row
        costs, is_near = self._prune(rows, costs, is_live)
        near, is_live, _ = shapes.select(is_near, batch * self._sizes.arcs)
        sources, arcs, rows, costs = (t.index_select(0, near) for t in (sources, arcs, rows, costs))
        # 4) closure of each arc's target, [c]
        targets = graph.arc_targets.index_select(0, arcs)
        is_idle_arc = None
        if idle is not None:
            is_idle_arc = arcs == graph.idle_arc
            targets = torch.where(is_idle_arc, tokens.states.index_select(0, sources), targets)
        starts, degrees = (t.index_select(0, targets) for t in (graph.closure_starts, graph.closure_degrees))
        if is_idle_arc is not None:
            degrees = torch.where(is_idle_arc, 1, degrees)  # the state itself
        if is_live is not None:
            degrees = torch.where(is_live, degrees, 0)
        emitted, entries, is_live = self._expand(rows, costs, starts, degrees)
        closed_rows = rows.index_select(0, emitted)
        closed_costs = graph.closure_weights.index_select(0, entries).mul_(self._weights_of(closed_rows))
        closed_costs += costs.index_select(0, emitted)
        states, word_boosts = self._of_closure(closed_rows, entries)
        if word_boosts is not None:
            closed_costs -= word_boosts
        closed_costs, is_near = self._prune(closed_rows, closed_costs, is_live)
        # 5) recombine tokens of equal states; 6) the best of each row
        keys = states
        if phrases is not None:
            phrases = phrases.index_select(0, near).index_select(0, emitted)
            keys = keys | (phrases << 32)
        is_kept, winners = self._recombination.survivors(closed_rows, keys, closed_costs, is_live)
        if is_idle_arc is not None:
            is_kept |= is_idle_arc.index_select(0, emitted)
        is_kept &= is_near
        kept, is_live = self._best_active(closed_rows, closed_costs, is_kept)
        if self._recorder is not None:
            self._recorder.add(
                Candidates(closed_rows, closed_costs, is_near, winners, sources, arcs, emitted, entries), kept, is_live
            )
        # 7) where the new tokens come from
        rows, states, emitted, entries, costs = (
            t.index_select(0, kept) for t in (closed_rows, states, emitted, entries, closed_costs)
        )
        sources = sources.index_select(0, emitted)
        self.backpointers.append(Backpointers(rows, sources, arcs.index_select(0, emitted), emitted, entries, is_live))
        phrases = self._no_phrase.expand_as(rows) if phrases is None else phrases.index_select(0, kept)
        if is_live is not None:
            states = torch.where(is_live, states, graph.dead_state)
            costs = torch.where(is_live, costs, torch.inf)
        return FlatTokens(rows, states, phrases, costs)

    def _expand(
        self, rows: torch.Tensor, costs: torch.Tensor, starts: torch.Tensor, degrees: torch.Tensor
    ) -> Expansion:
        """Entries of each source; a row that has more than A follows those of its best sources."""
        if self._shapes.is_static:
            degrees = self._narrow(rows, costs, degrees)
        capacity = self._batch * self._sizes.arcs
        expansion = self._shapes.expand(starts, degrees, capacity)
        if not self._shapes.is_static and len(expansion.entries) > self._sizes.arcs:
            narrowed = self._narrow(rows, costs, degrees)
            if narrowed is not degrees:
                return self._shapes.expand(starts, narrowed, capacity)
        return expansion

    def _narrow(self, rows: torch.Tensor, costs: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
        totals = torch.zeros(self._batch, dtype=torch.int64, device=rows.device).scatter_add_(0, rows, degrees)
        is_over = totals > self._sizes.arcs
        if not self._shapes.is_static and not is_over.any():
            return degrees
        self.narrowed += is_over
        return torch.where(histogram_prune(rows, costs, degrees, self._sizes.arcs, self._batch), degrees, 0)

    def _prune(
        self, rows: torch.Tensor, costs: torch.Tensor, is_live: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Costs above the least of the row, which goes to `bases`; and whether they are within the beam.

        May overwrite `costs`.
        """
        if is_live is None and self._batch == 1:
            least = costs.amin()
            self.bases += least
            costs -= least
            return costs, costs <= self._beam_width
        if is_live is not None:
            costs = torch.where(is_live, costs, torch.inf)
        least = torch.full((self._batch,), torch.inf, device=rows.device).scatter_reduce_(0, rows, costs, "amin")
        if is_live is not None:
            least = torch.where(least < torch.inf, least, 0)  # rows without tokens
        self.bases += least
        costs -= least.index_select(0, rows)
        return costs, costs <= self._beam_width

    def _best_active(
        self, rows: torch.Tensor, costs: torch.Tensor, is_kept: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Positions of the max_active best of each row, and which are live."""
        active, batch = self._sizes.max_active, self._batch
        if not self._shapes.is_static:
            positions = self._shapes.select(is_kept, batch * active).positions
            if len(positions) <= active or not (torch.bincount(rows.index_select(0, positions)) > active).any():
                return positions, None
        is_kept &= histogram_prune(rows, costs, is_kept.long(), active, batch)
        chosen = self._shapes.select(is_kept, batch * active)
        return chosen.positions, chosen.is_live

    def _of_labels(
        self, frame: Frame, rows: torch.Tensor, arcs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Costs of the arcs' labels, and boosts of their words; None where no row boosts anything."""
        if self._boosts is None:
            places = self._graph.arc_labels.index_select(0, arcs).add_(frame.offsets.index_select(0, rows))
            return self._label_costs.index_select(0, places), None
        # Both places in one number: that of the word's boost in the upper half, that of the label's cost in the lower.
        places = self._graph.arc_words_and_labels.index_select(0, arcs)
        places += (self._boost_rows | frame.offsets).index_select(0, rows)
        boosts = self._boost_table.index_select(0, places >> self._half)
        return self._label_costs.index_select(0, places.bitwise_and_(self._low_half)), boosts

    def _of_closure(self, rows: torch.Tensor, entries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Targets of closure entries, and boosts of their words; None where no row boosts any."""
        graph = self._graph
        if self._boosts is None or not graph.has_closure_words:
            return graph.closure_targets.index_select(0, entries), None
        places = graph.closure_words_and_targets.index_select(0, entries)
        targets = places & self._low_half
        places += self._boost_rows.index_select(0, rows)
        return targets, self._boost_table.index_select(0, places.bitwise_right_shift_(self._half))

    def _boost_phrases(
        self, costs: torch.Tensor, arcs: torch.Tensor, sources: torch.Tensor, phrases: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Costs and phrase states after arcs, from the phrase states of all tokens; None where no row has phrases."""
        assert self._boosts is not None
        if self._boosts.phrases is None:
            return costs, None
        pieces, before = self._graph.arc_pieces.index_select(0, arcs), phrases.index_select(0, sources)
        is_piece = pieces >= 0
        scores, states = self._boosts.phrases.advance(before, pieces.clamp(min=0).long())
        costs -= torch.where(is_piece, scores, 0.0)
        return costs, torch.where(is_piece, states, before)

    def _weights_of(self, rows: torch.Tensor) -> torch.Tensor:
        return self._lm_weights.index_select(0, rows) if self._lm_weight is None else self._lm_weight


class FusedFrameStep:
    """Takes frames of one chunk; tokens of a row begin at a multiple of K, or of the width of the first tokens."""

    def __init__(self, graph: DeviceGraph, memory: FrameMemory, beam: float, batch: int):
        self._fused = FusedFrame(_arcs_of(graph), memory, beam)
        self._batch = batch
        self._rows = torch.arange(batch, device=graph.device).repeat_interleave(memory.active)

    def begin(
        self, label_costs: torch.Tensor, lm_weights: torch.Tensor, bases: torch.Tensor, boosts: StreamBoosts | None
    ) -> None:
        """Implements `FrameStep.begin`."""
        self._label_costs, self._lm_weights = label_costs, lm_weights.contiguous()
        self._phrases = None if boosts is None else boosts.phrases
        self._word_boosts = None if boosts is None else boosts.words.reshape(-1)
        self._boost_rows = None if boosts is None else boosts.table_rows * boosts.words.shape[1]
        self.backpointers: list[Backpointers] = []
        self.bases = bases.clone()
        self.narrowed = torch.zeros(self._batch, dtype=torch.int64, device=bases.device)

    def __call__(self, tokens: FlatTokens, frame: Frame) -> FlatTokens:
        """Implements `FrameStep.__call__`."""
        assert frame.is_idle is not None
        before = GraphTokens(*(field.view(self._batch, -1) for field in tokens[1:]))
        inputs = GraphFrame(
            self._label_costs, frame.offsets, frame.is_idle, self._lm_weights, self._word_boosts, self._boost_rows
        )
        advance = None if self._phrases is None else self._phrases.advance
        after, backpointers = self._fused(before, inputs, self.bases, self.narrowed, advance)
        self.backpointers.append(Backpointers(self._rows, *(field.view(-1) for field in backpointers)))
        return FlatTokens(self._rows, *(field.view(-1) for field in after))


def _arcs_of(graph: DeviceGraph) -> GraphArcs:
    return GraphArcs(
        graph.arc_starts,
        graph.degrees,
        graph.arc_labels,
        graph.arc_weights,
        graph.arc_words,
        graph.arc_targets,
        graph.arc_pieces,
        graph.closure_starts,
        graph.closure_degrees,
        graph.closure_targets,
        graph.closure_weights,
        graph.closure_words,
    )
