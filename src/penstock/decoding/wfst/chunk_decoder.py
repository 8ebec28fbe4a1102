"""The interface of the search for chunks, and chunks that are decoded in parts, with the same result."""

from abc import ABC, abstractmethod

import torch

from penstock.decoding.tensors.graph_buckets import split_chunk
from penstock.decoding.tensors.tensor_tree import map_tensors
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.links import ChunkLinks
from penstock.decoding.wfst.paths import BestPath
from penstock.decoding.wfst.state import WfstStates


class ChunkDecoder(ABC):
    """A `WfstSearch` or a `CapturedWfstSearch`."""

    def decode(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor,
        is_end: torch.Tensor,
        states: WfstStates,
        boosts: StreamBoosts | None = None,
    ) -> tuple[BestPath, WfstStates]:
        """`decode_with_links` without links."""
        path, after, _ = self.decode_with_links(log_probs, lengths, is_end, states, boosts)
        return path, after

    @abstractmethod
    def decode_with_links(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor,
        is_end: torch.Tensor,
        states: WfstStates,
        boosts: StreamBoosts | None = None,
        wants_links: torch.Tensor | None = None,
    ) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
        """Decodes one chunk of B streams.

        log_probs: [B, T, V + 1] float32, blank last, T may be 0; lengths: [B] int64 valid frames, 0 .. T; is_end: [B]
        bool, True adds final weights to the cost; states: before the chunk, not modified. Returns the best paths, the
        states after, and links. boosts: None where no row boosts anything. wants_links: [B] bool, rows whose links are
        returned, of one part of the chunk after the other; None: no row's are.
        """


def decode_chunk(
    search: ChunkDecoder,
    chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    states: WfstStates,
    boosts: StreamBoosts | None = None,
    wants_links: torch.Tensor | None = None,
) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
    """As `decode_with_links`, with the same result for chunks of any length, also where tokens are dropped.

    chunk: log_probs, lengths, is_end. One whose nodes could outgrow their memory is decoded in halves, down to single
    frames, and the end of a segment after its last frame. So tokens are dropped as if each frame were a chunk. Waits
    for the device once.
    """
    log_probs, lengths, is_end = chunk
    path, after, links = search.decode_with_links(*chunk, states, boosts, wants_links)
    frames, ends = log_probs.shape[1], is_end & (lengths > 0)
    if not frames or not bool(path.may_overflow.any()) or (frames == 1 and not bool(ends.any())):
        return path, after, links
    if frames == 1:
        parts = [(log_probs, lengths, is_end & ~ends), (log_probs[:, :0], torch.zeros_like(lengths), is_end)]
    else:
        halves = split_chunk(log_probs, lengths, (frames + 1) // 2)
        parts = [(half.projected_frames, half.lengths, is_end & (half.remaining == 0)) for half in halves]
    paths, links = [], []
    for part in parts:
        *result, its_links = decode_chunk(search, part, states, boosts, wants_links)
        path, states = map_tensors(torch.clone, tuple(result))
        paths.append(path)
        links += [map_tensors(torch.clone, one) for one in its_links]
    return join_paths(paths), states, links


def join_paths(paths: list[BestPath]) -> BestPath:
    """The paths of consecutive parts as one: what became stable in each, then the last one's; does not synchronize."""
    *before, last = paths
    if not before:
        return last
    # 1) valid nodes of each part: [B, P] each
    counts = [*(path.stable for path in before), last.lengths]
    is_valid = torch.cat(
        [
            torch.arange(path.pieces.shape[1], device=count.device) < count.unsqueeze(1)
            for path, count in zip(paths, counts, strict=True)
        ],
        dim=1,
    )
    # 2) moved together, to the front
    order = (~is_valid).long().argsort(dim=1, stable=True)
    fields = ("pieces", "words", "frames", "last_frames_before", "scores")
    nodes = {name: torch.cat([getattr(path, name) for path in paths], dim=1).gather(1, order) for name in fields}
    stable = torch.stack([path.stable for path in paths]).sum(dim=0)
    may_overflow = torch.stack([path.may_overflow for path in paths]).amax(dim=0)
    lengths = torch.stack(counts).sum(dim=0)
    return last._replace(**nodes, lengths=lengths, stable=stable, may_overflow=may_overflow)
