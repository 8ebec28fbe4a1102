"""Beam search prepared beforehand for batches up to a size: what a CUDA graph needs, and a driver that runs it.

Knows neither streams nor how a driver works.
"""

import torch

from penstock.decoding.beam_results import BeamUpdate, NBest, TokenLists
from penstock.decoding.beam_search import BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamRows
from penstock.decoding.beam_workspace import BeamBuffers, first
from penstock.decoding.buckets import Buckets, pieces_of
from penstock.decoding.rows import map_rows
from penstock.graphs.driver import Driver


class CapturedBeamSearch:
    """Runs a beam search with a driver, on tensors that never move; a batch is filled up with streams without beams."""

    def __init__(self, search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded piece by piece, with the result of such chunks.
        sizes: of the streams' `BeamRows`.
        """
        sizes = sizes or BeamSizes()
        self._search, self._frames = search, frames
        in_reach = sizes.carried_encoder_frames + frames
        labels, columns = search.search.most_labels(in_reach), search.search.most_columns(in_reach)
        self._buffers = BeamBuffers(search.network, max_batch, frames, sizes, labels, columns)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, rows: BeamRows
    ) -> tuple[BeamUpdate, BeamRows]:
        """As `BeamSearch.decode`, but what it returns is overwritten by the next call.

        A batch above the largest bucket is decoded eagerly. Whether it synchronises is the driver's choice.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(frame_rows, lengths, is_end, rows)
        self._buffers.load_rows(rows)
        stable: list[TokenLists] = []
        is_cut = frame_rows.shape[1] > self._frames
        for piece in pieces_of(frame_rows, lengths, self._frames):
            self._buffers.load(piece.frame_rows, piece.lengths, is_end & (piece.left == 0))
            bucket.run()
            found = first(bucket.workspace.update.stable, batch)
            stable.append(map_rows(torch.clone, found) if is_cut else found)
        update = first(bucket.workspace.update, batch)
        return update._replace(stable=joined(stable)), first(bucket.workspace.rows, batch)

    def n_best(self, rows: BeamRows) -> NBest:
        """The hypotheses of streams that have ended."""
        return self._search.n_best(rows)


def beam_with_driver(
    search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None
) -> BeamSearch | CapturedBeamSearch:
    """The search as `driver` runs it: itself for the eager one, which needs no preparation and wastes no padding."""
    return search if driver.name == "eager" else CapturedBeamSearch(search, driver, max_batch, frames, sizes)


def joined(parts: list[TokenLists]) -> TokenLists:
    """Labels [B, M] of each part one after another; does not synchronise."""
    if len(parts) == 1:
        return parts[0]
    tokens = map_rows(lambda *same: torch.cat(same, dim=1), *(part.tokens for part in parts))
    is_token = [torch.arange(part.tokens.labels.shape[1], device=part.lengths.device) for part in parts]
    is_token = torch.cat([p < part.lengths.unsqueeze(1) for p, part in zip(is_token, parts, strict=True)], dim=1)
    order = (~is_token).long().argsort(dim=1, stable=True)
    return TokenLists(map_rows(lambda t: t.gather(1, order), tokens), sum(part.lengths for part in parts))
