"""A chunk of beam search as tensors that never move: what a captured search reads, works on and leaves behind.

Knows neither the search nor who drives it.
"""

from dataclasses import dataclass

import torch

from penstock.decoding.beam_hyps import ABSENT, BatchedBeamHyps, TokenRows
from penstock.decoding.beam_results import BeamUpdate, TokenLists
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import BeamRows, fresh_rows
from penstock.decoding.beam_work import BeamWork
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import copy_rows, map_rows


@dataclass
class BeamWorkspace:
    """One chunk of B streams. R carried frames, M labels of a tail."""

    work: BeamWork
    """Its `frame_rows` [B, R + T, J] have the chunk behind the carried frames; its `context` is that of `rows`."""
    rows: BeamRows
    """[B], in: the state before; out: the state after."""
    lengths: torch.Tensor
    """[B] int64, valid frames of the chunk."""
    update: BeamUpdate
    """[B], out; its stable labels have room for `most_labels`."""

    @property
    def most_labels(self) -> int:
        """Labels that a hypothesis can have before any become stable."""
        return self.update.stable.tokens.labels.shape[1]

    def begin(self) -> None:
        """Readies `work` for what was loaded."""
        work, rows = self.work, self.rows
        carried = rows.carried_rows.shape[1]
        work.hyps.restart(rows.hypotheses, rows.tail)
        work.frame_rows[:, :carried].copy_(rows.carried_rows)
        torch.sub(rows.frames_seen, carried, out=work.first_frames)
        torch.add(rows.frames_seen, self.lengths, out=work.end_frames)
        work.forced.zero_()

    def keep(self, update: BeamUpdate, rows: BeamRows) -> None:
        """Puts the result where it stays."""
        copy_rows(self.update, update)
        copy_rows(self.rows, rows)


class BeamBuffers:
    """The memory of the workspaces of all batch sizes up to one: they are used one after another, so they share it."""

    def __init__(
        self, network: TransducerNetwork, batch: int, frames: int, sizes: BeamSizes, most_labels: int, most_columns: int
    ):
        """most_labels, most_columns: what a chunk can add to a hypothesis and to a stream's tree of labels.

        ValueError names a size that cannot be.
        """
        rows = fresh_rows(network, batch, sizes)
        _, carried, tail = sizes
        self._carried = carried

        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(batch, *shape, dtype=torch.int64, device=network.device)

        def lists(longest: int) -> TokenLists:
            real = (whole(longest).float() for _ in range(2))
            return TokenLists(TokenRows(*(whole(longest) for _ in range(3)), *real), whole())

        # A step needs room for a column even where it adds none.
        hyps = BatchedBeamHyps(rows.hypotheses, rows.tail, most_columns + 1, network.blank, is_growable=False)
        self._workspace = BeamWorkspace(
            work=BeamWork(
                hyps=hyps,
                context=rows.context,
                frame_rows=rows.carried_rows.new_zeros(batch, carried + frames, rows.carried_rows.shape[2]),
                first_frames=whole(),
                end_frames=whole(),
                is_end=torch.zeros(batch, dtype=torch.bool, device=network.device),
                beam_sizes=rows.beam_sizes,
            ),
            rows=rows,
            lengths=whole(),
            update=BeamUpdate(lists(tail + most_labels), lists(tail), whole()),
        )

    def workspace(self, batch: int) -> BeamWorkspace:
        """The workspace of the first `batch` streams."""
        whole = self._workspace
        work = whole.work
        rows, lengths, update = (first(tree, batch) for tree in (whole.rows, whole.lengths, whole.update))
        return BeamWorkspace(
            BeamWork(
                hyps=work.hyps.first(batch),
                context=rows.context,
                frame_rows=work.frame_rows[:batch],
                first_frames=work.first_frames[:batch],
                end_frames=work.end_frames[:batch],
                is_end=work.is_end[:batch],
                beam_sizes=rows.beam_sizes,
            ),
            rows,
            lengths,
            update,
        )

    def load(self, frame_rows: torch.Tensor, lengths: torch.Tensor, is_end: torch.Tensor) -> None:
        """Copies one chunk in: frame_rows [b, t, J], lengths, is_end [b]; the streams behind b get none."""
        batch, frames, _ = frame_rows.shape
        place = self._workspace
        place.work.frame_rows[:batch, self._carried : self._carried + frames].copy_(frame_rows)
        place.work.is_end[:batch].copy_(is_end)
        place.lengths[:batch].copy_(lengths)
        place.lengths[batch:].zero_()

    def load_rows(self, rows: BeamRows) -> None:
        """Copies b streams' state in; the streams behind b get no hypotheses, so nothing moves there."""
        batch = len(rows.frames_seen)
        copy_rows(first(self._workspace.rows, batch), rows)
        self._workspace.rows.hypotheses.scores[batch:].fill_(ABSENT)


def first(tree, batch: int):
    """The first `batch` rows of a tree, in the same memory."""
    return map_rows(lambda t: t[:batch], tree)
