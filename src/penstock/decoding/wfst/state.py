"""The state of a stream's search between chunks, and its store in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.tensors.state_store import StateStore
from penstock.decoding.tensors.tensor_tree import leaves, map_tensors
from penstock.decoding.wfst.device_graph import NO_PIECE, DeviceGraph
from penstock.decoding.wfst.sizes import WfstSizes

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
