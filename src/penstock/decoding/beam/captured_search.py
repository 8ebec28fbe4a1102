"""CapturedBeamSearch: beam search prepared by a driver, as CUDA graphs need it, for bucketed batch sizes."""

import torch

from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import BeamBuffers, BeamStates, BeamUpdate
from penstock.decoding.beam.results import NBest
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.tensors.graph_buckets import Buckets, split_chunk
from penstock.decoding.tensors.tensor_tree import first, map_tensors
from penstock.graphs.program import Driver


class CapturedBeamSearch:
    """Runs a beam search with a driver; a batch is padded to a bucket with streams without hypotheses."""

    def __init__(self, search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded in parts, with the result of such chunks.
        sizes: of the streams' `BeamStates`.
        """
        sizes = sizes or BeamSizes()
        self._search, self._frames = search, frames
        in_reach = sizes.carried_encoder_frames + frames
        labels, columns = search.algorithm.max_labels(in_reach), search.algorithm.max_columns(in_reach)
        self._buffers = BeamBuffers(search.network, max_batch, frames, sizes, labels, columns)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self, projected_frames: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor, states: BeamStates
    ) -> tuple[BeamUpdate, BeamStates]:
        """Equals `BeamSearch.decode`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly. It synchronizes as its driver does.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(projected_frames, lengths, is_end, states)
        self._buffers.load_states(states)
        stable: list[TokenLists] = []
        is_split = projected_frames.shape[1] > self._frames
        for part in split_chunk(projected_frames, lengths, self._frames):
            self._buffers.load(part.projected_frames, part.lengths, is_end & (part.remaining == 0))
            bucket.run()
            part_stable = first(bucket.workspace.update.stable, batch)
            stable.append(map_tensors(torch.clone, part_stable) if is_split else part_stable)
        update = first(bucket.workspace.update, batch)
        return update._replace(stable=joined(stable)), first(bucket.workspace.states, batch)

    def n_best(self, states: BeamStates) -> NBest:
        """The hypotheses of streams that have ended, best first."""
        return self._search.n_best(states)


def beam_with_driver(
    search: BeamSearch, driver: Driver, max_batch: int, frames: int, sizes: BeamSizes | None = None
) -> BeamSearch | CapturedBeamSearch:
    """Prepares the search for `driver`; the eager one needs no preparation, and takes the search as it is."""
    return search if driver.name == "no_graphs" else CapturedBeamSearch(search, driver, max_batch, frames, sizes)


def joined(parts: list[TokenLists]) -> TokenLists:
    """Concatenates the labels [B, M] of the parts for each stream; does not synchronize."""
    if len(parts) == 1:
        return parts[0]
    tokens = map_tensors(lambda *same: torch.cat(same, dim=1), *(part.tokens for part in parts))
    places = [torch.arange(part.tokens.labels.shape[1], device=part.lengths.device) for part in parts]
    is_token = torch.cat([p < part.lengths.unsqueeze(1) for p, part in zip(places, parts, strict=True)], dim=1)
    order = (~is_token).long().argsort(dim=1, stable=True)
    lengths = torch.stack([part.lengths for part in parts]).sum(dim=0)
    return TokenLists(map_tensors(lambda t: t.gather(1, order), tokens), lengths)
