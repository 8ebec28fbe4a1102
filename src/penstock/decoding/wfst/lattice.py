"""The lattice of a stream's segment, on the host: all paths within the lattice beam of the best one.

After Povey et al., "Generating exact lattices in the WFST framework" (2012): links of every frame, pruned as soon as
it is known that no path through them can come within the beam of the best. Only the last frames have several paths:
what is older has one for each token, so memory is fixed.
"""

import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import tree_to_host
from penstock.decoding.wfst.backpointers import ChunkLinks
from penstock.decoding.wfst.device_graph import NO_PIECE, DeviceGraph
from penstock.decoding.wfst.state import StartLinks
from penstock.scoring.wfst.graph_file import NO_WORD

SLACK = 1e-3
"""Nats of the beam added while a segment goes on, so that rounding cannot prune what its end would keep."""
NEW_LINKS = 4096
"""A lattice is pruned when it has this many links more than the last pruning left."""
MAX_FRAMES = 500
"""Last frames of a segment in which alternatives differ."""


class LatticeArcs(NamedTuple):
    """The words on arcs and closure entries of a graph, on the host; int32."""

    pieces: np.ndarray
    """[A + 1], see `DeviceGraph.arc_pieces`."""
    words: np.ndarray
    """[A + 1]"""
    labels: np.ndarray
    """[A + 1]"""
    closure_words: np.ndarray
    blank: int
    idle_arc: int

    @classmethod
    def of(cls, graph: DeviceGraph) -> "LatticeArcs":
        """Copies the arrays to the host."""
        arrays = graph.arc_pieces, graph.arc_words, graph.arc_labels, graph.closure_words
        return cls._make([*(array.int().cpu().numpy() for array in arrays), graph.blank, graph.idle_arc])


class Level(NamedTuple):
    """The links of one frame, [m], in order of their tokens; the first of each token is its best path's."""

    frame: int
    """-1: the links to the first tokens."""
    sources: np.ndarray
    """Places of the tokens before the frame."""
    targets: np.ndarray
    """Places of the tokens after it."""
    pieces: np.ndarray
    """NO_PIECE: none begins here."""
    words: np.ndarray
    """0: none; words of the arcs."""
    closure_words: np.ndarray
    """0: none; come after `words`."""
    is_label: np.ndarray
    """False for blanks."""
    label_costs: np.ndarray
    """float64"""
    excesses: np.ndarray
    """float64, see `StartLinks`."""

    def select(self, chosen: np.ndarray) -> "Level":
        """The links that a mask or index chooses."""
        return Level(self.frame, *(field[chosen] for field in self[1:]))


class Node(NamedTuple):
    """A piece or word of a path: fields as in `penstock.decoding.wfst.state.Nodes`."""

    piece: int
    word: int
    frame: int
    last_frame_before: int
    score: float


class PathStart(NamedTuple):
    """A path from the start of the segment to a token."""

    node: Node | None = None
    """The last one."""
    before: "PathStart | None" = None
    """The path that `node` is added to."""
    last_frame: int = -1
    """Last frame of the last piece; -1 without one."""
    acoustic_cost: float = 0.0

    def after(self, level: Level, link: int) -> "PathStart":
        """The path with a link after it."""
        node, before, label_cost = self.node, self.before, float(level.label_costs[link])
        piece, word, closure_word = level.pieces[link], level.words[link], level.closure_words[link]
        last_frame, acoustic_cost = self.last_frame, self.acoustic_cost + label_cost
        if piece != NO_PIECE or word != NO_WORD:
            score = -label_cost if piece != NO_PIECE else 0.0
            node, before = Node(int(piece), int(word), level.frame, last_frame, score), self
        if level.is_label[link]:
            last_frame = level.frame
        path = PathStart(node, before, last_frame, acoustic_cost)
        if closure_word != NO_WORD:
            node = Node(NO_PIECE, int(closure_word), level.frame, last_frame, 0.0)
            path = PathStart(node, path, last_frame, acoustic_cost)
        return path

    def nodes(self) -> list[Node]:
        """From the start on."""
        nodes, path = [], self
        while path.node is not None and path.before is not None:
            nodes.append(path.node)
            path = path.before
        return nodes[::-1]


class HostLinks(NamedTuple):
    """Links of a chunk on the host, those that rows want, in order of rows, frames and targets."""

    keys: np.ndarray
    """row * T + frame"""
    sources: np.ndarray
    targets: np.ndarray
    arcs: np.ndarray
    closure_entries: np.ndarray
    excesses: np.ndarray
    label_costs: np.ndarray
    """[B, T, V + 2]"""
    first_frames: np.ndarray
    token_rows: np.ndarray
    is_stored: np.ndarray

    @classmethod
    def fetched(cls, chunk: ChunkLinks, wants_links: torch.Tensor) -> "HostLinks":
        """Copies what rows want, wants_links [B] bool; waits for the device."""
        links, (batch, frames, _) = chunk.links, chunk.label_costs.shape
        is_wanted = torch.nn.functional.pad(wants_links, (0, batch - len(wants_links))).index_select(0, links.rows)
        if links.is_live is not None:
            is_wanted = is_wanted & links.is_live
        chosen = is_wanted.nonzero().squeeze(1)
        keys = links.rows * frames + chunk.frames
        fields = keys, links.sources, links.targets, links.arcs, links.closure_entries, links.excesses
        wanted = *(t.index_select(0, chosen) for t in fields), chunk.label_costs
        tensors = *wanted, chunk.first_frames, chunk.token_rows, chunk.is_stored
        host = [t.numpy() for t in (tensors if chosen.device.type == "cpu" else tree_to_host(tensors))]
        order = np.lexsort((host[2], host[0]))  # stable: those that won stay first
        return cls(*(field[order] for field in host[:6]), *host[6:])


class Lattice:
    """Grows by chunks."""

    def __init__(self, arcs: LatticeArcs, start: StartLinks, beam: float):
        """beam: nats above the best path."""
        self._arcs, self._beam = arcs, beam
        count = len(start.targets)
        zeros = np.zeros(count, np.int64)
        nothing = np.full(count, NO_PIECE), zeros, start.words, zeros != 0, np.zeros(count)
        self._levels = [Level(-1, zeros, start.targets, *nothing, start.excesses)]
        self._starts = [PathStart()]
        """Starts of paths at the tokens before the first level."""
        self._extras: list[np.ndarray | None] = [None]
        """Result of the last pruning for the tokens before each level."""
        self._link_count, self._pruned_count = count, 0

    def copied(self) -> "Lattice":
        """The same by itself."""
        other = copy.copy(self)
        other._levels, other._starts, other._extras = list(self._levels), list(self._starts), list(self._extras)
        return other

    def add(self, links: HostLinks, row: int) -> None:
        """Adds the frames of a chunk; frames that the row does not take add nothing."""
        frames = links.label_costs.shape[1]
        borders = np.searchsorted(links.keys, np.arange(row * frames, (row + 1) * frames + 1))
        for frame, (first, end) in enumerate(pairwise(borders.tolist())):
            arcs, entries = links.arcs[first:end], links.closure_entries[first:end]
            if first == end or arcs[0] == self._arcs.idle_arc:
                continue
            labels = self._arcs.labels[arcs]
            level = Level(
                int(links.first_frames[row]) + frame,
                links.sources[first:end].astype(np.int32),
                links.targets[first:end].astype(np.int32),
                self._arcs.pieces[arcs],
                self._arcs.words[arcs],
                self._arcs.closure_words[entries],
                labels != self._arcs.blank,
                links.label_costs[row, frame, labels].astype(np.float64),
                links.excesses[first:end].astype(np.float64),
            )
            self._levels.append(level)
            self._extras.append(None)
            self._link_count += len(arcs)
        self._keep(links.is_stored[(links.token_rows == row) & (links.is_stored >= 0)] > 0)
        if self._link_count > self._pruned_count + NEW_LINKS:
            self._prune(np.zeros(1 + self._levels[-1].targets.max()), self._beam + SLACK)
        self._shorten()

    def end(self, ending_costs: np.ndarray) -> tuple[list[PathStart], list[Level], np.ndarray]:
        """The paths to the tokens before the first level, the levels within the beam of the best path, and the last
        tokens' costs above its, [K] float64; infinite beyond the beam.

        ending_costs: [K] float32 of the tokens, infinite where there is none.
        """
        above = ending_costs.astype(np.float64) - float(ending_costs.min())
        above[above > self._beam] = np.inf
        self._extras = [None] * len(self._levels)
        self._prune(above, self._beam)
        return self._starts, self._levels, above

    def _shorten(self) -> None:
        """Leaves each token before the last `MAX_FRAMES` its best path."""
        count = max(len(self._levels) - MAX_FRAMES, 0)
        for level in self._levels[:count]:
            winners = np.flatnonzero(np.diff(level.targets, prepend=-1)).tolist()
            self._starts = [self._starts[level.sources[link]].after(level, link) for link in winners]
            self._link_count -= len(level.sources)
        self._pruned_count = min(self._pruned_count, self._link_count)
        del self._levels[:count], self._extras[:count]

    def _keep(self, is_stored: np.ndarray) -> None:
        """Leaves out tokens that were dropped after the last frame."""
        if not is_stored.all():
            last = self._levels[-1]
            last = last.select(is_stored[last.targets])
            self._levels[-1] = last._replace(targets=(np.cumsum(is_stored) - 1)[last.targets])

    def _prune(self, extras: np.ndarray, beam: float) -> None:
        """Leaves out links through which no path comes within the beam.

        extras: [K] float64 of the last tokens, what the least cost of a path through them is above the best.
        """
        numbers = np.arange(len(extras), dtype=np.int32)
        for place in reversed(range(len(self._levels))):
            level = self._levels[place]
            # 1) links within the beam; numbers of their tokens among those that are left
            above = extras[level.targets] + level.excesses
            is_kept = above <= beam
            level, above = level.select(is_kept), above[is_kept]
            # 2) the least for each token before the frame
            before = 1 + self._levels[place - 1].targets.max() if place else len(self._starts)
            sources, targets = level.sources, numbers[level.targets]
            extras = np.full(before, np.inf)
            np.minimum.at(extras, sources, above)
            is_left = np.isfinite(extras)
            numbers = np.cumsum(is_left, dtype=np.int32) - 1
            self._levels[place] = level._replace(sources=numbers[sources], targets=targets)
            # 3) what comes before is as the last time left it
            known, self._extras[place] = self._extras[place], extras[is_left]
            if known is not None and is_left.all() and np.array_equal(known, extras):
                break
        else:
            self._starts = [start for start, left in zip(self._starts, is_left.tolist(), strict=True) if left]
        self._link_count = self._pruned_count = sum(len(level.sources) for level in self._levels)
