"""CapturedSearch: greedy search prepared by a driver, as CUDA graphs need it, for bucketed batch sizes."""

import torch

from penstock.decoding.greedy.memory import BatchedHyps, GreedyBuffers, GreedyStates, GreedyWorkspace
from penstock.decoding.greedy.search import GreedySearch
from penstock.decoding.tensors.graph_buckets import Bucket, Buckets, split_chunk
from penstock.decoding.tensors.tensor_tree import first
from penstock.decoding.transducer.interface import max_labels
from penstock.graphs.program import Driver


class CapturedSearch:
    """Runs a greedy search with a driver; a batch is padded to a bucket with streams of length 0."""

    def __init__(self, search: GreedySearch, driver: Driver, max_batch: int, frames: int):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded in parts, with the same result.
        """
        self._search, self._frames = search, frames
        labels = max_labels(search.network.config, frames, search.max_symbols)
        self._buffers = GreedyBuffers(search.network, max_batch, frames, labels)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self,
        projected_frames: torch.Tensor,
        lengths: torch.Tensor,
        states: GreedyStates,
        overwrites_states: bool = False,
    ) -> tuple[BatchedHyps, GreedyStates]:
        """Equals `GreedySearch.decode`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly. It synchronizes as its driver does.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(projected_frames, lengths, states, overwrites_states)
        self._buffers.load_states(states)
        hyps = self._decode_parts(bucket, projected_frames, lengths)
        new_states = bucket.workspace.states
        return hyps.first(batch), first(new_states if states.fusion else new_states._replace(fusion=()), batch)

    def _decode_parts(
        self, bucket: Bucket[GreedyWorkspace], projected_frames: torch.Tensor, lengths: torch.Tensor
    ) -> BatchedHyps:
        hyps, frames = bucket.workspace.hyps, projected_frames.shape[1]
        if frames <= self._frames:
            self._buffers.load(projected_frames, lengths)
            bucket.run()
            return hyps
        room = -(-frames // self._frames) * hyps.max_labels
        together = BatchedHyps(len(hyps.lengths), room, lengths.device, expected_labels=2 * frames + 2)
        for part in split_chunk(projected_frames, lengths, self._frames):
            self._buffers.load(part.projected_frames, part.lengths)
            bucket.run()
            together.extend(hyps)
        return together


def with_driver(search: GreedySearch, driver: Driver, max_batch: int, frames: int) -> GreedySearch | CapturedSearch:
    """Prepares the search for `driver`; the eager one needs no preparation, and takes the search as it is."""
    return search if driver.name == "no_graphs" else CapturedSearch(search, driver, max_batch, frames)
