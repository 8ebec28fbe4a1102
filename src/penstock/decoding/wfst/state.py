"""The state of a stream's search between chunks, its store in slots on the device, and the start of streams.

A stream starts in the closure of the graph's first state, with its own weights and boosts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.sizes import WfstSizes
from penstock.decoding.tensors.tensor_tree import StateStore, leaves, map_tensors
from penstock.decoding.wfst.device_graph import NO_PIECE, DeviceGraph
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph

NO_NODE = -1


class Tokens(NamedTuple):
    """Ends of paths, in slots [B, K]; a row's live ones come first."""

    states: torch.Tensor
    """int32, of the graph."""
    phrases: torch.Tensor
    """int32, of the phrase list."""
    costs: torch.Tensor
    """float32, above the row's best token."""
    nodes: torch.Tensor
    """int32, the path's last node; NO_NODE: none that is not stable."""
    last_frames: torch.Tensor
    """int32, last frame of the path's last piece; -1 without one."""


class Nodes(NamedTuple):
    """Pieces and words on the paths of the tokens, in slots [B, C]: parents before children."""

    parents: torch.Tensor
    """int32; NO_NODE: the node before is stable, or there is none."""
    pieces: torch.Tensor
    """int32, the token that begins here; NO_PIECE where only a word does."""
    words: torch.Tensor
    """int32; 0: none begins here."""
    frames: torch.Tensor
    """int32, counted from the segment's start."""
    last_frames_before: torch.Tensor
    """int32, last frame of the piece before this one."""
    scores: torch.Tensor
    """float32, log-probability of the piece at this frame; 0 without one."""


class WfstStates(NamedTuple):
    """State of B streams."""

    tokens: Tokens
    token_counts: torch.Tensor
    """[B] int64"""
    nodes: Nodes
    node_counts: torch.Tensor
    """[B] int64"""
    bases: torch.Tensor
    """[B] float64, cost of the best token."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    was_blank: torch.Tensor
    """[B] int64, 1 where the last frame belonged to a run of blanks: see `WfstLimits.skip_blank`."""
    lm_weights: torch.Tensor
    """[B] float32, scale of the graph's weights."""
    narrowed_frames: torch.Tensor
    """[B] int64, times that a frame followed fewer arcs than its beam holds."""
    dropped_tokens: torch.Tensor
    """[B] int64, tokens dropped because the paths had too many nodes."""


class WfstStateStore(StateStore[WfstStates]):
    """Searches of all streams. On a CPU only what lives is copied."""

    def __init__(self, graph: DeviceGraph, slots: int, sizes: WfstSizes):
        super().__init__(empty_states(1, sizes, graph.device), slots)

    def gather(self, slots: torch.Tensor) -> WfstStates:
        """Copies the states of `slots` [B] int64. On a CPU slots after the fullest row's last are left out."""
        if self.device.type != "cpu":
            return super().gather(slots)
        counts = self._states.token_counts.index_select(0, slots), self._states.node_counts.index_select(0, slots)
        tokens, nodes = (max(int(count.max()), 1) for count in counts)
        return map_tensors(lambda t: t.index_select(0, slots), narrowed(self._states, tokens, nodes))

    def scatter(self, slots: torch.Tensor, states: WfstStates) -> None:
        """Writes the states of `slots` [B] int64 back; they may have fewer slots than the store."""
        for storage, new in zip(leaves(narrowed_like(self._states, states)), leaves(states), strict=True):
            storage.index_copy_(0, slots, new)


def empty_states(batch: int, sizes: WfstSizes, device: torch.device) -> WfstStates:
    """States without tokens."""

    def integers(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((batch, *shape), value, dtype=dtype, device=device)

    def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(batch, *shape, dtype=dtype, device=device)

    active, nodes = sizes.max_active, sizes.nodes
    return WfstStates(
        tokens=Tokens(
            states=integers(active),
            phrases=integers(active),
            costs=zeros(active, dtype=torch.float32),
            nodes=integers(active, value=NO_NODE),
            last_frames=integers(active, value=-1),
        ),
        token_counts=integers(dtype=torch.int64),
        nodes=Nodes(
            parents=integers(nodes, value=NO_NODE),
            pieces=integers(nodes, value=NO_PIECE),
            words=integers(nodes),
            frames=integers(nodes),
            last_frames_before=integers(nodes),
            scores=zeros(nodes, dtype=torch.float32),
        ),
        node_counts=integers(dtype=torch.int64),
        bases=zeros(dtype=torch.float64),
        frames_seen=integers(dtype=torch.int64),
        was_blank=integers(dtype=torch.int64),
        lm_weights=zeros(dtype=torch.float32),
        narrowed_frames=integers(dtype=torch.int64),
        dropped_tokens=integers(dtype=torch.int64),
    )


def narrowed_like(states: WfstStates, other: WfstStates) -> WfstStates:
    """Views of as many slots of each row as `other` has."""
    return narrowed(states, other.tokens.states.shape[1], other.nodes.parents.shape[1])


def narrowed(states: WfstStates, tokens: int, nodes: int) -> WfstStates:
    """Views of the first slots of each row."""
    return states._replace(
        tokens=map_tensors(lambda t: t[:, :tokens], states.tokens),
        nodes=map_tensors(lambda t: t[:, :nodes], states.nodes),
    )


class StartChoices(NamedTuple):
    """The options of a stream."""

    lm_weight: float
    """Scale of the graph's weights."""
    word_boosts: np.ndarray | None = None
    """[W] float32, by word; None: none."""
    phrase_state: int = 0
    """Start of its phrase list; 0 without one."""


class StartLinks(NamedTuple):
    """Ways to a segment's first tokens, [m], in order of the tokens, the cheapest of each first."""

    targets: np.ndarray
    """Places of the tokens."""
    words: np.ndarray
    """0: none."""
    excesses: np.ndarray
    """float64, cost above the token's."""


class StartStates:
    """Builds the states of new streams, on the host."""

    def __init__(self, graph: DecodingGraph, device_graph: DeviceGraph, sizes: WfstSizes, beam: float):
        first, end = graph.closure_offsets[graph.start_state : graph.start_state + 2]
        self._targets = graph.closure_targets[first:end]
        self._weights = graph.closure_weights[first:end]
        self._words = graph.closure_words[first:end]
        self._max_active = sizes.max_active
        # Only what is used at the start, and not K and C slots of each stream.
        self._sizes = sizes._replace(max_active=min(sizes.max_active, int(end - first)), nodes=int(end - first))
        self._beam = np.float32(beam)
        self._device = device_graph.device

    def build(self, choices: Sequence[StartChoices]) -> WfstStates:
        """States of B streams before their first frame, with as few slots as they need."""
        states = empty_states(len(choices), self._sizes, torch.device("cpu"))
        for row, choice in enumerate(choices):
            self._fill(states, row, choice)
        return map_tensors(lambda t: t.to(self._device), states)

    def links(self, choice: StartChoices, beam: float) -> StartLinks:
        """The ways to the first tokens of a stream, up to `beam` nats above the cheapest of each."""
        costs, _ = self._costs(choice)
        kept = self._kept(costs)
        places = {int(self._targets[entry]): place for place, entry in enumerate(kept)}
        links = []
        for entry in np.flatnonzero(costs <= self._beam).tolist():
            place = places.get(int(self._targets[entry]))
            if place is not None and costs[entry] - costs[kept[place]] <= beam:
                excess = float(costs[entry] - costs[kept[place]])
                links.append((place, entry != kept[place], int(self._words[entry]), excess))
        targets, _, words, excesses = zip(*sorted(links, key=lambda link: link[:2]), strict=True)
        return StartLinks(np.array(targets), np.array(words), np.array(excesses))

    def _costs(self, choice: StartChoices) -> tuple[np.ndarray, np.float32]:
        """Costs of the closure's entries above the least, and the least."""
        costs = np.float32(choice.lm_weight) * self._weights
        if choice.word_boosts is not None:
            costs = costs - choice.word_boosts[self._words]
        least = costs.min()
        return costs - least, least

    def _kept(self, costs: np.ndarray) -> list[int]:
        """The cheapest entry of each state, in order of position."""
        best: dict[int, int] = {}
        for entry in np.flatnonzero(costs <= self._beam).tolist():
            state = int(self._targets[entry])
            if state not in best or costs[entry] < costs[best[state]]:
                best[state] = entry
        return sorted(sorted(best.values(), key=lambda entry: (costs[entry], entry))[: self._max_active])

    def _fill(self, states: WfstStates, row: int, choice: StartChoices) -> None:
        costs, least = self._costs(choice)
        entries = np.array(self._kept(costs))
        words = self._words[entries]
        places = np.flatnonzero(words != NO_WORD)  # of tokens with a node
        count, node_count = len(entries), len(places)
        tokens, nodes = states.tokens, states.nodes
        tokens.states[row, :count] = torch.from_numpy(self._targets[entries])
        tokens.phrases[row, :count] = choice.phrase_state
        tokens.costs[row, :count] = torch.from_numpy(costs[entries])
        if node_count:
            tokens.nodes[row, torch.from_numpy(places)] = torch.arange(node_count, dtype=torch.int32)
            nodes.words[row, :node_count] = torch.from_numpy(words[places])
            nodes.last_frames_before[row, :node_count] = -1
        states.token_counts[row], states.node_counts[row] = count, node_count
        states.bases[row] = float(least)
        states.lm_weights[row] = choice.lm_weight
