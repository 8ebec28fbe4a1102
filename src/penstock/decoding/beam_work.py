"""BeamWork: all that one chunk's search works on, and the moves that ALSD++ and AES++ share.

Every tensor keeps its storage and nothing synchronises, so that a step can be captured.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from penstock.decoding.beam_expansion import Expander, Expansions, FusedScores, Limits
from penstock.decoding.beam_hyps import ABSENT, KEEP, BatchedBeamHyps, Extension
from penstock.decoding.networks import PredictorState, TransducerNetwork
from penstock.decoding.rows import flatten_rows, gather_rows, map_rows, overwrite_rows, unflatten_rows
from penstock.fusion.fusion import FusionRows

CAN_STEP, IS_BEHIND = 0, 1
"""The flags: some stream can take a step; some hypothesis has to be forced on."""


class BeamContext(NamedTuple):
    """What the networks and automata know of each hypothesis. J joint width."""

    predictor_rows: torch.Tensor
    """[B, K, J], the prediction after the last label."""
    predictor_state: PredictorState
    """Tensors [B, K, ...]."""
    fusion: FusionRows
    """Fields [B, K]."""


@dataclass
class BeamWork:
    """One chunk of B streams."""

    hyps: BatchedBeamHyps
    context: BeamContext
    frame_rows: torch.Tensor
    """[B, F, J], carried frames and the chunk's."""
    first_frames: torch.Tensor
    """[B] int64, absolute encoder frame of the first of `frame_rows`."""
    end_frames: torch.Tensor
    """[B] int64, encoder frames seen by the end of this chunk."""
    is_end: torch.Tensor
    """[B] bool, True where no frames will follow."""
    beam_sizes: torch.Tensor
    """[B] int64, 1 .. K hypotheses that the stream may have."""
    flags: torch.Tensor = field(init=False)
    """[2] bool"""
    can_step: torch.Tensor = field(init=False)
    """[B] bool, True for streams that take the next step."""
    is_unfinished: torch.Tensor = field(init=False)
    """[B, K] bool, True for hypotheses that had a frame to look at when this was last marked."""
    is_behind: torch.Tensor = field(init=False)
    """[B, K] bool, True for hypotheses whose frame will not be carried."""
    forced: torch.Tensor = field(init=False)
    """[B] int64, frames that hypotheses were forced on by."""

    def __post_init__(self):
        live = self.hyps.rows.next_frames
        self.flags = torch.zeros(2, dtype=torch.bool, device=live.device)
        self.can_step = torch.zeros_like(self.is_end)
        self.is_unfinished, self.is_behind = (torch.zeros_like(live, dtype=torch.bool) for _ in range(2))
        self.forced = torch.zeros_like(self.end_frames)
        self.any_can_step, self.any_is_behind = self.flags.unbind()

    def mark_unfinished(self) -> None:
        """Sets `is_unfinished`."""
        rows = self.hyps.rows
        torch.logical_and(rows.is_live, rows.next_frames < self.end_frames.unsqueeze(1), out=self.is_unfinished)


class BeamMoves:
    """Scores hypotheses at their frames and replaces them by their continuations."""

    def __init__(self, network: TransducerNetwork, expander: Expander):
        self._network = network
        self._expander = expander

    def score(self, work: BeamWork, is_forced: torch.Tensor) -> FusedScores:
        """The joint at each hypothesis's frame, with the automata; is_forced: [B, K], no label is possible there."""
        width = work.frame_rows.shape[2]
        place = work.hyps.rows.next_frames - work.first_frames.unsqueeze(1)
        place = place.clamp(0, work.frame_rows.shape[1] - 1).unsqueeze(2).expand(-1, -1, width)
        frames = work.frame_rows.gather(1, place)
        scores = self._network.score(frames.flatten(0, 1), work.context.predictor_rows.flatten(0, 1))
        return self._expander.fuse(scores, flatten_rows(work.context.fusion), is_forced.flatten())

    def force_on(self, work: BeamWork, is_forced: torch.Tensor) -> None:
        """Moves hypotheses [B, K] on by one frame, with a blank; the others stay."""
        limits = Limits(work.hyps.beam_size, work.beam_sizes)
        self.follow(work, choose(work, self._expander.rank(self.score(work, is_forced), limits), is_forced))

    def follow(self, work: BeamWork, extension: Extension) -> None:
        """Makes `extension` the beam: labels, scores, times, predictor and automata; then merges."""
        hyps, context = work.hyps, work.context
        is_label = hyps.extend(extension)
        moved = (context.predictor_rows, context.predictor_state, self._expander.states(context.fusion))
        old = gather_rows(moved, extension.parents)
        labels = torch.where(is_label, extension.labels, 0).flatten()  # of the others it does not count
        _, predictor_state, states = flatten_rows(old)
        prediction = self._network.predict(labels, predictor_state)
        states = self._expander.advance(states, flatten_rows(context.fusion.lm_weights), labels)
        new = unflatten_rows((*prediction, states), hyps.beam_size)
        overwrite_rows(moved, is_label, new, old)
        hyps.merge()


def choose(work: BeamWork, expansions: Expansions, expands: torch.Tensor) -> Extension:
    """The K best of each stream among the expansions of some hypotheses and the others as they are.

    expansions: N = B * K; expands: [B, K] bool, True for the hypotheses that are replaced by their expansions. A stream
    in which none is keeps its hypotheses in their places.
    """
    rows = work.hyps.rows
    batch, beam_size = expands.shape
    added = map_rows(lambda field: field.view(batch, beam_size, -1), expansions)
    width = added.labels.shape[2]
    is_first = torch.arange(width, device=expands.device) == 0
    stay = torch.where(is_first, rows.scores.unsqueeze(2), ABSENT)  # [B, K, W]
    totals = torch.where(expands.unsqueeze(2), rows.scores.unsqueeze(2) + added.ranking_scores, stay)
    scores, index = totals.flatten(1).topk(beam_size, dim=1)
    slots = torch.arange(beam_size, device=totals.device)
    scores = torch.where(slots < work.beam_sizes.unsqueeze(1), scores, ABSENT)
    is_still = ~expands.any(dim=1, keepdim=True)
    index = torch.where(is_still, slots * width, index)
    scores = torch.where(is_still, rows.scores, scores)
    parents = index // width
    # What is absent must take no column of the tree: it stays, too.
    is_kept = ~expands.gather(1, parents) | (scores == ABSENT)

    def pick(values: torch.Tensor, otherwise: int) -> torch.Tensor:
        return torch.where(is_kept, otherwise, values.flatten(1).gather(1, index))

    return Extension(
        parents=parents,
        labels=pick(added.labels, KEEP),
        jumps=pick(added.jumps, 0),
        scores=scores,
        acoustic_scores=pick(added.acoustic_scores, 0),
        ranking_scores=pick(added.ranking_scores, 0),
        external_scores=None if added.external_scores is None else pick(added.external_scores, 0),
    )
