"""BeamScratch, the tensors of one chunk's search, and the operations that the searches' steps share.

Every tensor keeps its storage and nothing synchronizes, so that a step can be captured.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from penstock.decoding.beam.expansion import Expander, Expansions, FusedScores, Limits
from penstock.decoding.beam.hyps import ABSENT, KEEP, BatchedBeamHyps, Extension
from penstock.decoding.ctc import CtcHead
from penstock.decoding.tensors.tensor_tree import flatten, gather, map_tensors, overwrite, rows_at, unflatten
from penstock.decoding.transducer.interface import IlmWeights, PredictorState, TransducerNetwork
from penstock.scoring.fusion import Fusion, FusionStates

CAN_STEP, IS_BEHIND = 0, 1
"""The flags: some stream can take a step; some hypothesis needs a forced blank."""


class BeamContext(NamedTuple):
    """Predictor and automaton states of each hypothesis. J width of a projected prediction."""

    projected_predictions: torch.Tensor
    """[B, K, J], the prediction after the last label."""
    predictor_state: PredictorState
    """Tensors [B, K, ...]."""
    fusion: FusionStates
    """Fields [B, K]."""
    ilm: IlmWeights
    """Fields [B, K], the internal language model's weights, the same for all hypotheses of a stream."""


@dataclass
class BeamScratch:
    """One chunk of B streams."""

    hyps: BatchedBeamHyps
    context: BeamContext
    projected_frames: torch.Tensor
    """[B, R + T, J], carried frames and the chunk's."""
    first_frames: torch.Tensor
    """[B] int64, absolute encoder frame of the first of `projected_frames`."""
    end_frames: torch.Tensor
    """[B] int64, encoder frames seen by the end of this chunk."""
    is_end: torch.Tensor
    """[B] bool, True where a segment ends with this chunk: hypotheses may finish."""
    beam_sizes: torch.Tensor
    """[B] int64, 1 .. K hypotheses that the stream may have."""
    flags: torch.Tensor = field(init=False)
    """[2] bool"""
    can_step: torch.Tensor = field(init=False)
    """[B] bool, True for streams that take the next step."""
    is_unfinished: torch.Tensor = field(init=False)
    """[B, K] bool, True for live hypotheses at a frame of this chunk; set by `mark_unfinished`."""
    is_behind: torch.Tensor = field(init=False)
    """[B, K] bool, True for hypotheses at a frame that will not be carried."""
    forced_blanks: torch.Tensor = field(init=False)
    """[B] int64, blanks forced in this chunk for hypotheses that were behind."""

    def __post_init__(self) -> None:
        next_frames = self.hyps.beam.next_frames
        self.flags = torch.zeros(2, dtype=torch.bool, device=next_frames.device)
        self.can_step = torch.zeros_like(self.is_end)
        self.is_unfinished, self.is_behind = (torch.zeros_like(next_frames, dtype=torch.bool) for _ in range(2))
        self.forced_blanks = torch.zeros_like(self.end_frames)
        self.any_can_step, self.any_is_behind = self.flags.unbind()

    def mark_unfinished(self) -> None:
        """Sets `is_unfinished`."""
        beam = self.hyps.beam
        torch.logical_and(beam.is_live, beam.next_frames < self.end_frames.unsqueeze(1), out=self.is_unfinished)


BeamNetwork = TransducerNetwork | CtcHead
"""The heads that a beam can search with."""


class BeamOperations:
    """Replaces hypotheses by their continuations."""

    def __init__(self, network: BeamNetwork, fusion: Fusion):
        self._network = network
        self._fusion = fusion

    def extend(self, scratch: BeamScratch, expansions: Expansions, expands: torch.Tensor) -> None:
        """Replaces each beam by the K best continuations and merges equal ones; arguments as in `select_best`."""
        hyps, context = scratch.hyps, scratch.context
        # 1) prune to K hypotheses and extend their label sequences
        extension = select_best(scratch, expansions, expands)
        is_label = hyps.extend(extension)
        # 2) reorder predictor and automaton states to the parents
        current = (context.projected_predictions, context.predictor_state, self._automaton_states(context.fusion))
        old = gather(current, extension.parents)
        # 3) advance them by the labels: N = B * K, results where there is no label are discarded
        labels = torch.where(is_label, extension.labels, 0).flatten()
        _, predictor_state, states = flatten(old)
        prediction = self._network.predict(labels, predictor_state)
        states = self._advance(states, flatten(context.fusion.lm_weights), labels)
        new = unflatten((*prediction, states), hyps.beam_size)
        overwrite(current, is_label, new, old)
        # 4) merge
        hyps.merge()

    def _automaton_states(self, fusion: FusionStates) -> tuple[torch.Tensor, ...]:
        """The fields of `fusion` that labels change; empty without automata."""
        return () if self._fusion.is_empty else (fusion.lm_states, fusion.boost_states)

    def _advance(
        self, states: tuple[torch.Tensor, ...], lm_weights: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The automaton states after `labels` [N] (no blanks), from `states`, tensors [N]; lm_weights: [N]."""
        if self._fusion.is_empty:
            return states
        lm_states, boost_states = states
        _, after = self._fusion.advance(FusionStates(lm_states, boost_states, lm_weights), labels)
        return self._automaton_states(after)


class TransducerOperations(BeamOperations):
    """Also scores hypotheses at their frames, which differ within a beam."""

    def __init__(self, network: TransducerNetwork, expander: Expander):
        super().__init__(network, expander.fusion)
        self._transducer = network
        self._expander = expander

    def score(self, scratch: BeamScratch, is_forced: torch.Tensor) -> FusedScores:
        """Scores all labels for the B * K hypotheses; is_forced: [B, K] bool, where only a blank is possible."""
        place = scratch.hyps.beam.next_frames - scratch.first_frames.unsqueeze(1)
        place = place.clamp(0, scratch.projected_frames.shape[1] - 1)
        frames = rows_at(scratch.projected_frames, place)  # [B, K, J]
        context = scratch.context
        predictions = context.projected_predictions.flatten(0, 1)
        scores = self._transducer.score(frames.flatten(0, 1), predictions, flatten(context.ilm))
        return self._expander.fuse(scores, flatten(context.fusion), is_forced.flatten())

    def force_blanks(self, scratch: BeamScratch, is_forced: torch.Tensor) -> None:
        """Moves hypotheses [B, K] on by a blank of one frame; the others stay."""
        limits = Limits(scratch.hyps.beam_size, scratch.beam_sizes)
        self.extend(scratch, self._expander.rank(self.score(scratch, is_forced), limits), is_forced)


def select_best(scratch: BeamScratch, expansions: Expansions, expands: torch.Tensor) -> Extension:
    """Selects the K best of each stream among the expansions of some hypotheses and the others as they are.

    expansions: N = B * K; expands: [B, K] bool, True for the hypotheses that are replaced by their expansions. A stream
    without any keeps its hypotheses in their places.
    """
    beam = scratch.hyps.beam
    batch, beam_size = expands.shape
    candidates = map_tensors(lambda t: t.view(batch, beam_size, -1), expansions)
    width = candidates.labels.shape[2]
    # 1) totals of all candidates; a hypothesis that is not expanded has itself as its only one: [B, K, W]
    is_first = torch.arange(width, device=expands.device) == 0
    stay = torch.where(is_first, beam.scores.unsqueeze(2), ABSENT)
    totals = torch.where(expands.unsqueeze(2), beam.scores.unsqueeze(2) + candidates.ranking_scores, stay)
    # 2) the K best of each stream, as many as it may have: [B, K]
    scores, index = totals.flatten(1).topk(beam_size, dim=1)
    slots = torch.arange(beam_size, device=totals.device)
    scores = torch.where(slots < scratch.beam_sizes.unsqueeze(1), scores, ABSENT)
    # 3) streams that expand nothing stay as they are
    is_still = ~expands.any(dim=1, keepdim=True)
    index = torch.where(is_still, slots * width, index)
    scores = torch.where(is_still, beam.scores, scores)
    # 4) gather the candidates' fields; absent ones must take no column of the tree, so they are kept, too
    parents = index // width
    is_kept = ~expands.gather(1, parents) | (scores == ABSENT)

    def pick(values: torch.Tensor, otherwise: int) -> torch.Tensor:
        return torch.where(is_kept, otherwise, values.flatten(1).gather(1, index))

    return Extension(
        parents=parents,
        labels=pick(candidates.labels, KEEP),
        jumps=pick(candidates.jumps, 0),
        scores=scores,
        acoustic_scores=pick(candidates.acoustic_scores, 0),
        ranking_scores=pick(candidates.ranking_scores, 0),
        external_scores=None if candidates.external_scores is None else pick(candidates.external_scores, 0),
    )
