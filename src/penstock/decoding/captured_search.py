"""Greedy search prepared beforehand for batches up to a size: what a CUDA graph needs, and a driver that runs it.

Knows neither streams nor how a driver works.
"""

import torch

from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.buckets import Bucket, Buckets, pieces_of
from penstock.decoding.greedy_search import GreedySearch, most_labels
from penstock.decoding.greedy_state import GreedyRows
from penstock.decoding.greedy_workspace import GreedyWorkspace, StaticBuffers
from penstock.decoding.rows import map_rows
from penstock.graphs.driver import Driver


class CapturedSearch:
    """Runs a search with a driver, on tensors that never move; a batch is filled up to a bucket with empty rows."""

    def __init__(self, search: GreedySearch, driver: Driver, max_batch: int, frames: int):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded piece by piece, with the same result.
        """
        self._search, self._frames = search, frames
        labels = most_labels(search.network.config, frames, search.max_symbols)
        self._buffers = StaticBuffers(search.network, max_batch, frames, labels)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, rows: GreedyRows
    ) -> tuple[BatchedHyps, GreedyRows]:
        """As `GreedySearch.decode`, but what it returns is overwritten by the next call.

        A batch above the largest bucket is decoded eagerly. Whether it synchronises is the driver's choice.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(frame_rows, lengths, rows)
        self._buffers.load_rows(rows)
        hyps = self._decode_pieces(bucket, frame_rows, lengths)
        return hyps.first(batch), map_rows(lambda t: t[:batch], bucket.workspace.rows)

    def _decode_pieces(
        self, bucket: Bucket[GreedyWorkspace], frame_rows: torch.Tensor, lengths: torch.Tensor
    ) -> BatchedHyps:
        found, total_frames = bucket.workspace.hyps, frame_rows.shape[1]
        if total_frames <= self._frames:
            self._buffers.load(frame_rows, lengths)
            bucket.run()
            return found
        pieces = -(-total_frames // self._frames)
        batch = len(bucket.workspace.lengths)
        together = BatchedHyps(batch, pieces * found.max_labels, lengths.device, expected_labels=2 * total_frames + 2)
        for piece in pieces_of(frame_rows, lengths, self._frames):
            self._buffers.load(piece.frame_rows, piece.lengths)
            bucket.run()
            together.extend(found)
        return together


def with_driver(search: GreedySearch, driver: Driver, max_batch: int, frames: int) -> GreedySearch | CapturedSearch:
    """The search as `driver` runs it: itself for the eager one, which needs no preparation and wastes no padding."""
    return search if driver.name == "eager" else CapturedSearch(search, driver, max_batch, frames)
