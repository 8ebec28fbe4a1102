"""BatchedBeamHyps: exactly K hypotheses for each of B streams, their labels a prefix tree in tensors.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.1. All but
`grow` works in place; nothing synchronizes.
"""

import copy
from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import copy_into, first, gather, map_tensors

KEEP = -1
"""Instead of a label: the hypothesis does not change."""
NO_NODE = -1
"""Parent of a first label, and the node of a hypothesis without labels."""
_HASH_FACTOR = -7046029254386353131  # odd; 2**64 divided by the golden ratio
ABSENT = float("-inf")
"""Score of a hypothesis that does not exist."""


class Hypotheses(NamedTuple):
    """K hypotheses of each stream without their earlier labels, all [B, K]."""

    scores: torch.Tensor
    """float64, total log-probability with external scores; `ABSENT` where there is no hypothesis."""
    external_scores: torch.Tensor
    """float64, the external part of `scores` (language model, boosting, eq. 3)."""
    hashes: torch.Tensor
    """int64, of all labels from the stream's start."""
    lengths: torch.Tensor
    """int64, labels from the stream's start."""
    last_labels: torch.Tensor
    """int64, `KEEP` before the first one; with CTC the label of the last frame, blank included."""
    next_frames: torch.Tensor
    """int64, absolute encoder frame of the next expansion; a TDT jump may end beyond the frames seen."""
    labels_at_frame: torch.Tensor
    """int64, labels already emitted at `next_frames`."""

    @property
    def is_live(self) -> torch.Tensor:
        """[B, K] bool, True where there is a hypothesis."""
        return self.scores > ABSENT


class TimedLabels(NamedTuple):
    """Labels with times and scores, all of one shape."""

    labels: torch.Tensor
    """int64"""
    timestamps: torch.Tensor
    """int64, absolute encoder frames."""
    durations: torch.Tensor
    """int64, encoder frames; 0 for an RNN-T label."""
    acoustic_scores: torch.Tensor
    """float32, the label's log-probability among labels and blank, without external scores."""
    ranking_scores: torch.Tensor
    """float32, what the label added to its hypothesis's score, with duration and external scores."""


class TokenLists(NamedTuple):
    """Lists of tokens with room for M each."""

    tokens: TimedLabels
    """[..., M]; only entries below `lengths` are valid."""
    lengths: torch.Tensor
    """[...] int64"""

    def prefix(self, labels: int) -> "TokenLists":
        """The first `labels` of each list; the lengths do not change."""
        return TokenLists(map_tensors(lambda t: t[..., :labels], self.tokens), self.lengths)


class Extension(NamedTuple):
    """The K hypotheses that replace those of each stream, all [B, K]."""

    parents: torch.Tensor
    """int64, index of the hypothesis that each one continues."""
    labels: torch.Tensor
    """int64: a label, blank, or `KEEP`."""
    jumps: torch.Tensor
    """int64, encoder frames moved on."""
    scores: torch.Tensor
    """float64, new totals."""
    acoustic_scores: torch.Tensor
    """Log-probability of the label alone, without external scores."""
    ranking_scores: torch.Tensor
    """The score that the continuation adds."""
    external_scores: torch.Tensor | None
    """External scores added; None: none."""


def extend_hash(hashes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Hashes of label sequences extended by one label each, modulo 2**64 (eq. 1); int64 of one shape."""
    return hashes * _HASH_FACTOR + labels + 1


class BatchedBeamHyps:
    """K hypotheses per stream: `beam` holds their scores and positions, a prefix tree their labels.

    The tree has columns of K nodes; one step fills at most one column. tokens: [B, L, K]; parents: [B, L, K] int64, the
    node before (`column * K + k`), or NO_NODE; nodes: [B, K] int64, each hypothesis's last node; stored_lengths: [B, K]
    int64, nodes from there to the root; columns: [B] int64, columns used.
    """

    def __init__(
        self,
        beam: Hypotheses,
        paths: TokenLists,
        spare_columns: int,
        blank: int,
        is_growable: bool = True,
        is_ctc: bool = False,
    ):
        """Copies `beam`. paths: [B, K, M], the labels not yet reported as stable.

        is_growable: `make_room` doubles the storage when it might not suffice; it then moves, so not inside a captured
        graph. is_ctc: a blank is a hypothesis's last label, so that the label before it can follow again.
        """
        batch, beam_size, longest = paths.tokens.labels.shape
        total, device = longest + spare_columns, beam.scores.device
        self.beam_size, self.blank, self._is_ctc = beam_size, blank, is_ctc
        self._is_growable, self._free_columns, self._longest_before = is_growable, spare_columns, longest
        self.beam = map_tensors(torch.empty_like, beam)
        self.tokens = map_tensors(lambda t: t.new_zeros(batch, total, beam_size), paths.tokens)
        column = torch.arange(total, device=device).unsqueeze(1)
        chain = (column - 1) * beam_size + torch.arange(beam_size, device=device)  # hypothesis k: a chain in place k
        self.parents = torch.where(column == 0, NO_NODE, chain).expand(batch, -1, -1).clone()
        self.nodes, self.stored_lengths = torch.empty_like(paths.lengths), torch.empty_like(paths.lengths)
        self.columns = torch.empty(batch, dtype=torch.int64, device=device)
        self.restart(beam, paths)

    def restart(self, beam: Hypotheses, paths: TokenLists) -> None:
        """Begins again in the same storage with another beam and paths of the same shapes."""
        longest = self._longest_before
        copy_into(self.beam, beam)
        # Steps fill columns after the first `longest` only, so the parents of these are still chains.
        for storage, labels in zip(self.tokens, paths.tokens, strict=True):
            storage[:, :longest].copy_(labels.transpose(1, 2))
        self.stored_lengths.copy_(paths.lengths)
        last = (paths.lengths - 1) * self.beam_size + torch.arange(self.beam_size, device=self.nodes.device)
        self.nodes.copy_(torch.where(paths.lengths > 0, last, NO_NODE))
        self.columns.fill_(longest)

    def first(self, batch: int) -> "BatchedBeamHyps":
        """The first `batch` streams, in the same storage, which must not grow."""
        part = copy.copy(self)
        part.beam, part.tokens = first(self.beam, batch), first(self.tokens, batch)
        part.parents, part.nodes = self.parents[:batch], self.nodes[:batch]
        part.stored_lengths, part.columns = self.stored_lengths[:batch], self.columns[:batch]
        return part

    @property
    def max_columns(self) -> int:
        """Columns of the storage."""
        return self.parents.shape[1]

    def make_room(self) -> None:
        """Grows if the storage may be full. To be called before each `extend` that may add labels."""
        if not self._is_growable:
            return
        if self._free_columns <= 1:
            self._free_columns += max(self.max_columns, 1)
            self.grow()
        self._free_columns -= 1

    def grow(self) -> None:
        """Doubles the storage by reallocating it, so not inside a captured graph."""
        more = max(self.max_columns, 1)
        self.tokens = map_tensors(lambda t: torch.nn.functional.pad(t, (0, 0, 0, more)), self.tokens)
        self.parents = torch.nn.functional.pad(self.parents, (0, 0, 0, more), value=NO_NODE)

    def extend(self, extension: Extension) -> torch.Tensor:
        """Replaces the hypotheses by their continuations; returns where a label was added, [B, K] bool.

        There must be room for one column, even where no label is added.
        """
        beam, labels, jumps = self.beam, extension.labels, extension.jumps
        # 1) select the parents and add nodes for their labels
        old = gather(beam, extension.parents)
        is_label = (labels != KEEP) & (labels != self.blank)
        self._add_nodes(extension, old.next_frames, is_label)
        # 2) scores
        beam.scores.copy_(extension.scores)
        if extension.external_scores is None:
            beam.external_scores.copy_(old.external_scores)
        else:
            torch.add(old.external_scores, extension.external_scores, out=beam.external_scores)
        # 3) label sequence: only labels change it
        torch.where(is_label, extend_hash(old.hashes, labels), old.hashes, out=beam.hashes)
        torch.add(old.lengths, is_label, out=beam.lengths)
        is_last = labels != KEEP if self._is_ctc else is_label
        torch.where(is_last, labels, old.last_labels, out=beam.last_labels)
        # 4) time
        torch.add(old.next_frames, jumps, out=beam.next_frames)
        torch.add(old.labels_at_frame, is_label, out=beam.labels_at_frame).masked_fill_(jumps > 0, 0)
        return is_label

    def _add_nodes(self, extension: Extension, timestamps: torch.Tensor, is_label: torch.Tensor) -> None:
        """Fills the next column of the tree; nodes of hypotheses without a new label stay unreferenced."""
        nodes, lengths = gather((self.nodes, self.stored_lengths), extension.parents)
        tokens = TimedLabels(
            extension.labels, timestamps, extension.jumps, extension.acoustic_scores, extension.ranking_scores
        )
        place = self.columns.clamp(max=self.max_columns - 1).view(-1, 1, 1).expand(-1, 1, self.beam_size)
        for storage, values in zip((*self.tokens, self.parents), (*tokens, nodes), strict=True):
            storage.scatter_(1, place, values.to(storage.dtype).unsqueeze(1))
        at_column = self.columns.unsqueeze(1) * self.beam_size + torch.arange(self.beam_size, device=nodes.device)
        torch.where(is_label, at_column, nodes, out=self.nodes)
        torch.add(lengths, is_label, out=self.stored_lengths)
        self.columns.add_(is_label.any(dim=1))

    def merge(self) -> None:
        """Merges equal hypotheses: the best one gets the sum of their probabilities, the others become absent.

        Equal are those with the same labels (by hash, length, last label) at the same frame: they have the same future.
        """
        beam = self.beam
        if self.beam_size == 1:
            return
        # 1) compare all pairs: [B, K, K]
        is_equal = (beam.hashes.unsqueeze(2) == beam.hashes.unsqueeze(1)) & (
            beam.lengths.unsqueeze(2) == beam.lengths.unsqueeze(1)
        )
        for key in (beam.last_labels, beam.next_frames):
            is_equal &= key.unsqueeze(2) == key.unsqueeze(1)
        # 2) add up the probabilities of each group in its best hypothesis
        scores = torch.where(is_equal, beam.scores.unsqueeze(1), ABSENT)
        is_best = scores.argmax(dim=2) == torch.arange(self.beam_size, device=scores.device)
        beam.scores.copy_(torch.where(is_best, scores.logsumexp(dim=2), ABSENT))

    def trace_back(self, longest: int) -> TokenLists:
        """The tokens of each hypothesis, [B, K, longest]; `longest` is at least the maximum of `stored_lengths`.

        Takes one step per label: meant for a `longest` that is that maximum.
        """
        path = [self.nodes]
        flat_parents = self.parents.flatten(1)
        for _ in range(longest - 1):
            path.append(flat_parents.gather(1, path[-1].clamp(min=0)))  # beyond the root: any node, never read
        return self._paths(torch.stack(path, dim=2)[:, :, :longest])

    def trace_back_within(self, bound: int) -> TokenLists:
        """Equals `trace_back(bound)` in log2(bound) steps, by pointer doubling; without a host copy of the lengths."""
        path = self.nodes.clamp(min=0).unsqueeze(2)
        ancestors = self.parents.flatten(1).clamp(min=0)  # each node's, at the paths' length before it
        while path.shape[2] < bound:
            path = torch.cat([path, ancestors.gather(1, path.flatten(1)).view(path.shape)], dim=2)
            if path.shape[2] < bound:
                ancestors = ancestors.gather(1, ancestors)
        return self._paths(path[:, :, :bound])

    def _paths(self, backwards: torch.Tensor) -> TokenLists:
        """Reverses paths of nodes [B, K, longest], last token first, and gathers their tokens."""
        places = torch.arange(backwards.shape[2], device=self.nodes.device)
        forwards = (self.stored_lengths.unsqueeze(2) - 1 - places).clamp(min=0)
        nodes = backwards.gather(2, forwards).clamp(min=0)
        tokens = map_tensors(lambda t: t.flatten(1).gather(1, nodes.flatten(1)).view(nodes.shape), self.tokens)
        return TokenLists(tokens, self.stored_lengths.clone())
