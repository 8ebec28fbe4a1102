"""CapturedWfstSearch: the search prepared by a driver, as CUDA graphs need it, for bucketed batch sizes.

A chunk is a program of one stretch of steps, without a loop: begin, one step per frame, finish.
"""

from functools import partial
from typing import NamedTuple

import torch

from penstock.decoding.tensors.graph_buckets import Bucket, Buckets, split_chunk
from penstock.decoding.tensors.tensor_tree import copy_into, first, map_tensors
from penstock.decoding.wfst.backpointers import ChunkLinks
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.ragged import StaticShapes
from penstock.decoding.wfst.search import WfstSearch, join_paths, largest_capacity
from penstock.decoding.wfst.state import WfstStates, empty_states, narrowed_like
from penstock.graphs.program import Driver, Program


class _Chunk(NamedTuple):
    """One chunk of B streams at fixed addresses."""

    log_probs: torch.Tensor
    """[B, T, V + 1], input, as the next four"""
    lengths: torch.Tensor
    is_end: torch.Tensor
    table_rows: torch.Tensor
    """[B] int64, see `StreamBoosts`"""
    states: WfstStates
    """Also output: after the chunk."""
    path: BestPath
    """Output."""


class CapturedWfstSearch:
    """Runs a search with a driver; a batch is padded to a bucket with streams without tokens."""

    def __init__(
        self, search: WfstSearch, driver: Driver, max_batch: int, frames: int, boosts: StreamBoosts | None = None
    ):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded in parts, with the same result. boosts: table
        and automaton of the streams, for programs of batches in which a stream boosts anything; None: none ever does.
        """
        self._search, self._frames, self._boosts = search, frames, boosts
        device = search.graph.device
        self._chunk = _empty_chunk(search, max_batch, frames)
        self._shapes = StaticShapes(device, largest_capacity(search.sizes, max_batch, frames))
        self._memory = search.frame_memory(max_batch)
        # The first for batches in which no stream boosts anything.
        self._plain = Buckets(driver, max_batch, self._part, partial(self._program, None))
        self._boosted = boosts and Buckets(driver, max_batch, self._part, partial(self._program, boosts))

    @torch.inference_mode()
    def decode(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor,
        is_end: torch.Tensor,
        states: WfstStates,
        boosts: StreamBoosts | None = None,
        wants_links: torch.Tensor | None = None,
    ) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
        """Does `WfstSearch.decode`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly, and so is one in which a stream wants links: their memory
        is more than all the rest, and few streams want any.
        """
        batch, buckets = len(lengths), self._plain if boosts is None else self._boosted
        bucket = None if buckets is None or wants_links is not None else buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(log_probs, lengths, is_end, states, boosts, wants_links)
        self._load_states(states)
        if boosts is not None:
            self._chunk.table_rows[:batch].copy_(boosts.table_rows)
        paths = self._decode_parts(bucket, log_probs, lengths, is_end)
        return join_paths(paths), first(bucket.workspace.states, batch), []

    def ending_costs(
        self, states: WfstStates, is_end: torch.Tensor, boosts: StreamBoosts | None = None
    ) -> torch.Tensor:
        """Calls `WfstSearch.ending_costs`."""
        return self._search.ending_costs(states, is_end, boosts)

    def _decode_parts(
        self, bucket: Bucket[_Chunk], log_probs: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor
    ) -> list[BestPath]:
        batch, paths = len(lengths), []
        is_split = log_probs.shape[1] > self._frames
        for part in split_chunk(log_probs, lengths, self._frames):
            self._chunk.log_probs[:batch, : part.projected_frames.shape[1]].copy_(part.projected_frames)
            self._chunk.lengths[:batch].copy_(part.lengths)
            self._chunk.is_end[:batch].copy_(is_end & (part.remaining == 0))
            bucket.run()
            path = first(bucket.workspace.path, batch)
            paths.append(map_tensors(torch.clone, path) if is_split else path)
        return paths

    def _load_states(self, states: WfstStates) -> None:
        """Copies the states in, which may have fewer slots; the streams after them get no tokens and no frames."""
        batch = len(states.bases)
        copy_into(narrowed_like(first(self._chunk.states, batch), states), states)
        self._chunk.states.token_counts[batch:].zero_()
        self._chunk.lengths[batch:].zero_()

    def _part(self, batch: int) -> _Chunk:
        return first(self._chunk, batch)

    def _program(self, boosts: StreamBoosts | None, chunk: _Chunk) -> Program:
        no_flags = torch.zeros(1, dtype=torch.bool, device=chunk.lengths.device)
        return Program(no_flags, (partial(self._run, boosts, chunk),))

    def _run(self, boosts: StreamBoosts | None, chunk: _Chunk) -> None:
        if boosts is not None:
            boosts = boosts._replace(table_rows=chunk.table_rows)
        inputs = chunk.log_probs, chunk.lengths, chunk.is_end
        path, states, _ = self._search.run(self._shapes, self._memory, inputs, chunk.states, boosts)
        copy_into(chunk.path, path)
        copy_into(chunk.states, states)


def wfst_with_driver(
    search: WfstSearch, driver: Driver, max_batch: int, frames: int, boosts: StreamBoosts | None = None
) -> WfstSearch | CapturedWfstSearch:
    """Prepares the search for `driver`; the eager one needs no preparation, and takes the search as it is."""
    return search if driver.name == "no_graphs" else CapturedWfstSearch(search, driver, max_batch, frames, boosts)


def _empty_chunk(search: WfstSearch, batch: int, frames: int) -> _Chunk:
    device, labels = search.graph.device, search.graph.vocabulary_size + 1
    width = search.sizes.path_width(frames)

    def integers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(batch, *shape, dtype=dtype, device=device)

    nodes = [integers(width, dtype=torch.int32) for _ in range(4)]
    scores, costs = integers(width, dtype=torch.float32), integers(dtype=torch.float64)
    path = BestPath._make((*nodes, scores, *(integers() for _ in range(3)), costs, integers()))
    log_probs = torch.full((batch, frames, labels), -1.0, device=device)
    states = empty_states(batch, search.sizes, device)
    return _Chunk(log_probs, integers(), integers(dtype=torch.bool), integers(), states, path)
