"""BatchedBeamHyps: exactly K hypotheses for each of B streams, their labels a prefix tree in tensors.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.1. Knows no
network. Everything but `grow` works in place or on memory of its own; nothing synchronises.
"""

import copy
from typing import NamedTuple

import torch

from penstock.decoding.rows import copy_rows, gather_rows, map_rows

KEEP = -1
"""In place of a label: the hypothesis stays as it is."""
NO_NODE = -1
_HASH_FACTOR = -7046029254386353131  # odd; 2**64 divided by the golden ratio
ABSENT = float("-inf")
"""Score of a hypothesis that does not exist."""


class HypothesisRows(NamedTuple):
    """What each hypothesis is, all [B, K]."""

    scores: torch.Tensor
    """float64, total log-probability with everything external; `ABSENT` where there is no hypothesis."""
    external_scores: torch.Tensor
    """float64, the part of `scores` that the network did not give (language model, boosting, eq. 3)."""
    hashes: torch.Tensor
    """int64, of all labels from the stream's start."""
    lengths: torch.Tensor
    """int64, labels from the stream's start."""
    last_labels: torch.Tensor
    """int64, `KEEP` before the first one."""
    next_frames: torch.Tensor
    """int64, absolute encoder frame at which the hypothesis stands; a TDT jump may end beyond the frames seen."""
    labels_at_frame: torch.Tensor
    """int64, labels already emitted at `next_frames`."""

    @property
    def is_live(self) -> torch.Tensor:
        """[B, K] bool, True where there is a hypothesis."""
        return self.scores > ABSENT


class TokenRows(NamedTuple):
    """Labels with what is known of each, all of one shape."""

    labels: torch.Tensor
    """int64"""
    timestamps: torch.Tensor
    """int64, absolute encoder frames."""
    durations: torch.Tensor
    """int64, encoder frames; 0 for an RNN-T label."""
    acoustic_scores: torch.Tensor
    """float32, the label's log-probability among labels and blank, nothing external."""
    ranking_scores: torch.Tensor
    """float32, what the label added to its hypothesis: with duration and external scores."""


class Extension(NamedTuple):
    """The K hypotheses that replace those of each stream, all [B, K]."""

    parents: torch.Tensor
    """int64, which of the old ones each continues."""
    labels: torch.Tensor
    """int64: a label, blank, or `KEEP`."""
    jumps: torch.Tensor
    """int64, encoder frames moved on."""
    scores: torch.Tensor
    """float64, new totals."""
    acoustic_scores: torch.Tensor
    """[B, K] as in `TokenRows`."""
    ranking_scores: torch.Tensor
    """[B, K] as in `TokenRows`."""
    external_scores: torch.Tensor | None
    """What was added from outside the network; None: nothing."""


class BeamPaths(NamedTuple):
    """Labels of each hypothesis in order."""

    tokens: TokenRows
    """[B, K, M]; only what is below `lengths` means anything."""
    lengths: torch.Tensor
    """[B, K] int64"""


def extend_hash(hashes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Hash of a label sequence with one label more; arithmetic modulo 2**64 (eq. 1). int64 of one shape."""
    return hashes * _HASH_FACTOR + labels + 1


class BatchedBeamHyps:
    """K hypotheses a stream: `rows` says what each is, a tree of tokens how it came about.

    tokens: [B, L, K], column by column; parents: [B, L, K] int64 the node before (`column * K + k`), or NO_NODE.
    nodes: [B, K] int64 each hypothesis's last token; stored_lengths: [B, K] tokens from there to the root.
    columns: [B] int64, columns used.
    """

    def __init__(
        self, rows: HypothesisRows, paths: BeamPaths, spare_columns: int, blank: int, is_growable: bool = True
    ):
        """rows: as before; paths: labels so far, of which the first may already have been dropped from all.

        is_growable: `make_room` doubles the storage when it might not suffice; it then moves, so never inside a
        captured graph.
        """
        batch, beam_size, longest = paths.tokens.labels.shape
        total, device = longest + spare_columns, rows.scores.device
        self.beam_size, self.blank = beam_size, blank
        self._is_growable, self._free_columns, self._longest_before = is_growable, spare_columns, longest
        self.rows = map_rows(torch.empty_like, rows)
        self.tokens = map_rows(lambda t: t.new_zeros(batch, total, beam_size), paths.tokens)
        column = torch.arange(total, device=device).unsqueeze(1)
        chain = (column - 1) * beam_size + torch.arange(beam_size, device=device)  # each slot its own chain
        self.parents = torch.where(column == 0, NO_NODE, chain).expand(batch, -1, -1).clone()
        self.nodes, self.stored_lengths = torch.empty_like(paths.lengths), torch.empty_like(paths.lengths)
        self.columns = torch.empty(batch, dtype=torch.int64, device=device)
        self.restart(rows, paths)

    def restart(self, rows: HypothesisRows, paths: BeamPaths) -> None:
        """Begins again in the same storage with other rows and paths of the same shapes."""
        longest = self._longest_before
        copy_rows(self.rows, rows)
        # The chains in front still are what they were: everything is added behind them.
        for storage, labels in zip(self.tokens, paths.tokens, strict=True):
            storage[:, :longest].copy_(labels.transpose(1, 2))
        self.stored_lengths.copy_(paths.lengths)
        last = (paths.lengths - 1) * self.beam_size + torch.arange(self.beam_size, device=self.nodes.device)
        self.nodes.copy_(torch.where(paths.lengths > 0, last, NO_NODE))
        self.columns.fill_(longest)

    def first(self, batch: int) -> "BatchedBeamHyps":
        """The first `batch` streams, in the same storage, which must not grow."""
        part = copy.copy(self)
        part.rows, part.tokens = (map_rows(lambda t: t[:batch], tree) for tree in (self.rows, self.tokens))
        part.parents, part.nodes = self.parents[:batch], self.nodes[:batch]
        part.stored_lengths, part.columns = self.stored_lengths[:batch], self.columns[:batch]
        return part

    @property
    def max_columns(self) -> int:
        """Columns that there is room for."""
        return self.parents.shape[1]

    def make_room(self) -> None:
        """Before each call of `extend` that may add labels: grows where there would be no room left, if it may."""
        if not self._is_growable:
            return
        if self._free_columns <= 1:
            self._free_columns += max(self.max_columns, 1)
            self.grow()
        self._free_columns -= 1

    def grow(self) -> None:
        """Doubles the storage. Reallocates: never inside a captured graph."""
        more = max(self.max_columns, 1)
        self.tokens = map_rows(lambda t: torch.nn.functional.pad(t, (0, 0, 0, more)), self.tokens)
        self.parents = torch.nn.functional.pad(self.parents, (0, 0, 0, more), value=NO_NODE)

    def extend(self, extension: Extension) -> torch.Tensor:
        """Replaces the hypotheses by their continuations; returns where a label was added, [B, K] bool.

        There must be room for one column, even where no label is added.
        """
        rows, parents, labels, jumps = self.rows, extension.parents, extension.labels, extension.jumps
        old = gather_rows(rows, parents)
        is_label = (labels != KEEP) & (labels != self.blank)
        self._add_nodes(extension, old.next_frames, is_label)
        rows.scores.copy_(extension.scores)
        if extension.external_scores is None:
            rows.external_scores.copy_(old.external_scores)
        else:
            torch.add(old.external_scores, extension.external_scores, out=rows.external_scores)
        torch.where(is_label, extend_hash(old.hashes, labels), old.hashes, out=rows.hashes)
        torch.add(old.lengths, is_label, out=rows.lengths)
        torch.where(is_label, labels, old.last_labels, out=rows.last_labels)
        torch.add(old.next_frames, jumps, out=rows.next_frames)
        torch.add(old.labels_at_frame, is_label, out=rows.labels_at_frame).masked_fill_(jumps > 0, 0)
        return is_label

    def _add_nodes(self, extension: Extension, timestamps: torch.Tensor, is_label: torch.Tensor) -> None:
        """Fills the next column; where no label was added, nothing will point there."""
        nodes, lengths = gather_rows((self.nodes, self.stored_lengths), extension.parents)
        found = TokenRows(
            extension.labels, timestamps, extension.jumps, extension.acoustic_scores, extension.ranking_scores
        )
        place = self.columns.clamp(max=self.max_columns - 1).view(-1, 1, 1).expand(-1, 1, self.beam_size)
        for storage, values in zip((*self.tokens, self.parents), (*found, nodes), strict=True):
            storage.scatter_(1, place, values.to(storage.dtype).unsqueeze(1))
        at_column = self.columns.unsqueeze(1) * self.beam_size + torch.arange(self.beam_size, device=nodes.device)
        torch.where(is_label, at_column, nodes, out=self.nodes)
        torch.add(lengths, is_label, out=self.stored_lengths)
        self.columns.add_(is_label.any(dim=1))

    def merge(self) -> None:
        """Adds the probabilities of equal hypotheses up in the best of them and makes the others absent.

        Equal: the same labels (by hash, length, last label) and the same frame, so that they have the same future.
        """
        rows = self.rows
        if self.beam_size == 1:
            return
        keys = (rows.hashes, rows.lengths, rows.last_labels, rows.next_frames)
        is_equal = (keys[0].unsqueeze(2) == keys[0].unsqueeze(1)) & (keys[1].unsqueeze(2) == keys[1].unsqueeze(1))
        for key in keys[2:]:
            is_equal &= key.unsqueeze(2) == key.unsqueeze(1)
        scores = torch.where(is_equal, rows.scores.unsqueeze(1), ABSENT)  # [B, K, K]
        is_best = scores.argmax(dim=2) == torch.arange(self.beam_size, device=scores.device)
        rows.scores.copy_(torch.where(is_best, scores.logsumexp(dim=2), ABSENT))

    def trace_back(self, longest: int) -> BeamPaths:
        """Labels of every hypothesis, [B, K, longest]; `longest` is at least any of `stored_lengths`.

        Takes a step a label: for a `longest` that is known to be the longest.
        """
        path = [self.nodes]
        flat_parents = self.parents.flatten(1)
        for _ in range(longest - 1):
            path.append(flat_parents.gather(1, path[-1].clamp(min=0)))  # behind the root: any node, never read
        return self._paths(torch.stack(path, dim=2)[:, :, :longest])

    def trace_back_within(self, bound: int) -> BeamPaths:
        """The same, [B, K, bound], for a `bound` far above most `stored_lengths`: doubles the paths in each step."""
        path = self.nodes.clamp(min=0).unsqueeze(2)
        ancestors = self.parents.flatten(1).clamp(min=0)  # of each node, as many before it as the paths are long
        while path.shape[2] < bound:
            path = torch.cat([path, ancestors.gather(1, path.flatten(1)).view(path.shape)], dim=2)
            if path.shape[2] < bound:
                ancestors = ancestors.gather(1, ancestors)
        return self._paths(path[:, :, :bound])

    def _paths(self, backwards: torch.Tensor) -> BeamPaths:
        """Turns nodes [B, K, longest], last token first, round and looks their tokens up."""
        places = torch.arange(backwards.shape[2], device=self.nodes.device)
        turned = (self.stored_lengths.unsqueeze(2) - 1 - places).clamp(min=0)
        nodes = backwards.gather(2, turned).clamp(min=0)
        tokens = map_rows(lambda t: t.flatten(1).gather(1, nodes.flatten(1)).view(nodes.shape), self.tokens)
        return BeamPaths(tokens, self.stored_lengths.clone())
