"""CapturedWfstSearch: the search prepared by a driver, as CUDA graphs need it, for bucketed batch sizes.

A chunk is a program of one stretch of steps, without a loop: begin, one step per frame, finish.
"""

from functools import partial
from typing import NamedTuple

import torch

from penstock.decoding.graph_buckets import Bucket, Buckets, split_chunk
from penstock.decoding.tensor_tree import copy_into, first, map_tensors
from penstock.decoding.wfst.chunk_decoder import ChunkDecoder, join_paths
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.links import ChunkLinks, Links
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.search import WfstSearch, largest_capacity
from penstock.decoding.wfst.shapes import StaticShapes
from penstock.decoding.wfst.state import WfstStates, empty_states, narrowed_like
from penstock.graphs.driver import Driver
from penstock.graphs.program import Program


class _Chunk(NamedTuple):
    """One chunk of B streams at fixed addresses."""

    log_probs: torch.Tensor
    """[B, T, V + 1], input, as the next four"""
    lengths: torch.Tensor
    is_end: torch.Tensor
    table_rows: torch.Tensor
    """[B] int64, see `StreamBoosts`"""
    wants_links: torch.Tensor
    """[B] bool, input of programs with links."""
    states: WfstStates
    """Also output: after the chunk."""
    path: BestPath
    """Output."""
    links: ChunkLinks | None
    """Output of programs with links, else None."""


class CapturedWfstSearch(ChunkDecoder):
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
        self._linking = search.frame_memory(max_batch, has_links=True)
        self._links = _empty_links(search, max_batch, frames)
        # The first for batches in which no stream boosts anything, the last for those in which a stream wants links.
        plain, linked = self._part, self._linked_part
        self._plain = Buckets(driver, max_batch, plain, partial(self._program, None))
        self._boosted = None if boosts is None else Buckets(driver, max_batch, plain, partial(self._program, boosts))
        self._linked = Buckets(driver, max_batch, linked, partial(self._program, boosts))

    @torch.inference_mode()
    def decode_with_links(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor,
        is_end: torch.Tensor,
        states: WfstStates,
        boosts: StreamBoosts | None = None,
        wants_links: torch.Tensor | None = None,
    ) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
        """As `ChunkDecoder.decode_with_links`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly, and so are links without boosts if there are boosts.
        """
        batch, buckets = len(lengths), self._plain if boosts is None else self._boosted
        if wants_links is not None:
            buckets = self._linked if (boosts is None) == (self._boosts is None) else None
        bucket = None if buckets is None else buckets.fitting(batch)
        if bucket is None:
            return self._search.decode_with_links(log_probs, lengths, is_end, states, boosts, wants_links)
        self._load_states(states)
        if boosts is not None:
            self._chunk.table_rows[:batch].copy_(boosts.table_rows)
        self._chunk.wants_links.zero_()
        if wants_links is not None:
            self._chunk.wants_links[:batch].copy_(wants_links)
        paths, links = self._decode_parts(bucket, log_probs, lengths, is_end)
        return join_paths(paths), first(bucket.workspace.states, batch), links

    def ending_costs(
        self, states: WfstStates, is_end: torch.Tensor, boosts: StreamBoosts | None = None
    ) -> torch.Tensor:
        """As `WfstSearch.ending_costs`."""
        return self._search.ending_costs(states, is_end, boosts)

    def _decode_parts(
        self, bucket: Bucket[_Chunk], log_probs: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor
    ) -> tuple[list[BestPath], list[ChunkLinks]]:
        batch, paths, links = len(lengths), [], []
        is_split = log_probs.shape[1] > self._frames
        for part in split_chunk(log_probs, lengths, self._frames):
            self._chunk.log_probs[:batch, : part.projected_frames.shape[1]].copy_(part.projected_frames)
            self._chunk.lengths[:batch].copy_(part.lengths)
            self._chunk.is_end[:batch].copy_(is_end & (part.remaining == 0))
            bucket.run()
            found = first(bucket.workspace.path, batch), bucket.workspace.links
            path, its_links = map_tensors(torch.clone, found) if is_split else found
            paths.append(path)
            links += [] if its_links is None else [its_links]
        return paths, links

    def _load_states(self, states: WfstStates) -> None:
        """Copies the states in, which may have fewer slots; the streams after them get no tokens and no frames."""
        batch = len(states.bases)
        copy_into(narrowed_like(first(self._chunk.states, batch), states), states)
        self._chunk.states.token_counts[batch:].zero_()
        self._chunk.lengths[batch:].zero_()

    def _part(self, batch: int) -> _Chunk:
        return first(self._chunk, batch)

    def _linked_part(self, batch: int) -> _Chunk:
        links: ChunkLinks = map_tensors(lambda t: t[: len(t) * batch // len(self._chunk.lengths)], self._links)
        return self._part(batch)._replace(links=links)

    def _program(self, boosts: StreamBoosts | None, chunk: _Chunk) -> Program:
        no_flags = torch.zeros(1, dtype=torch.bool, device=chunk.lengths.device)
        return Program(no_flags, (partial(self._run, boosts, chunk),))

    def _run(self, boosts: StreamBoosts | None, chunk: _Chunk) -> None:
        if boosts is not None:
            boosts = boosts._replace(table_rows=chunk.table_rows)
        inputs = chunk.log_probs, chunk.lengths, chunk.is_end
        if chunk.links is None:
            path, states, _ = self._search.run(self._shapes, self._memory, inputs, chunk.states, boosts)
        else:
            wants = chunk.wants_links
            path, states, links = self._search.run(self._shapes, self._linking, inputs, chunk.states, boosts, wants)
            copy_into(chunk.links, links)
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
    return _Chunk(
        log_probs,
        integers(),
        integers(dtype=torch.bool),
        integers(),
        integers(dtype=torch.bool),
        empty_states(batch, search.sizes, device),
        path,
        None,
    )


def _empty_links(search: WfstSearch, batch: int, frames: int) -> ChunkLinks:
    """All lengths are multiples of the batch."""
    device, sizes = search.graph.device, search.sizes
    count = batch * frames * (sizes.max_active + sizes.alternative_links)

    def integers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    links = Links._make(
        [*(integers(count) for _ in range(5)), torch.zeros(count, device=device), integers(count).bool()]
    )
    label_costs = torch.zeros(batch, frames, search.graph.vocabulary_size + 2, device=device)
    tokens = integers(batch * sizes.max_active), integers(batch * sizes.max_active)
    return ChunkLinks(integers(count), links, label_costs, integers(batch), *tokens)
