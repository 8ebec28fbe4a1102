"""Expander: the best continuations (label, duration) of each hypothesis, with external scores.

RNN-T is TDT with the one duration 0; a blank moves at least one frame. Hypotheses are independent here, N = B * K of
them, K for each of B streams. Labels are pruned by the sum of all scores, late pruning in Grigoryan et al., "Pushing
the limits of beam search decoding for Transducer-based ASR models".
"""

from typing import NamedTuple

import torch

from penstock.decoding.beam.hyps import ABSENT
from penstock.decoding.tensors.tensor_tree import map_tensors
from penstock.decoding.transducer.interface import Scores
from penstock.model.config import TransducerConfig
from penstock.scoring.fusion import Fusion, FusionStates, blank_offset, label_offset


class Expansions(NamedTuple):
    """W continuations of each of N hypotheses, all [N, W]."""

    labels: torch.Tensor
    """int64, blank included."""
    jumps: torch.Tensor
    """int64, encoder frames; at least 1 for a blank."""
    ranking_scores: torch.Tensor
    """Log-probability of label and duration with external scores; minus infinity where pruned."""
    acoustic_scores: torch.Tensor
    """Log-probability of the label alone."""
    external_scores: torch.Tensor | None
    """The external part of `ranking_scores`; None where there are none."""


class Limits(NamedTuple):
    """The number of continuations considered for the hypotheses of B streams."""

    beam_size: int
    """K"""
    beam_sizes: torch.Tensor
    """[B] int64, 1 .. K hypotheses that each stream may have."""
    extra: int = 0
    """A hypothesis's best beam size + extra continuations are considered."""
    margin: float | None = None
    """Continuations that score this much below the hypothesis's best are pruned; None: none are."""

    @property
    def max_width(self) -> int:
        """W at most."""
        return self.beam_size + self.extra

    def keep(self, ranking: torch.Tensor) -> torch.Tensor:
        """Keeps the first beam size + extra of scores [B * K, up to W], best first; the others become -inf."""
        places = torch.arange(ranking.shape[1], device=ranking.device)
        counts = places < (self.beam_sizes + self.extra).unsqueeze(1)  # [B, W]
        return torch.where(counts.unsqueeze(1), ranking.unflatten(0, (-1, self.beam_size)), ABSENT).flatten(0, 1)

    def prune(self, ranking: torch.Tensor) -> torch.Tensor:
        """Keeps those of scores [B * K, ...] within the margin; the others become -inf."""
        if self.margin is None:
            return ranking
        # ">=": the best one stays at a margin of 0, too.
        return torch.where(ranking >= ranking.amax(dim=1, keepdim=True) - self.margin, ranking, ABSENT)


class FusedScores(NamedTuple):
    """Scores of all labels for N hypotheses, each at its frame; undefined where a hypothesis has no frame."""

    network: Scores
    """Labels are impossible where a blank is forced."""
    external: torch.Tensor | None
    """[N, V + 1], the network's `extra` and the scores of automata; None where there is neither."""
    ranking: torch.Tensor
    """[N, V + 1], log-probabilities with `external`."""
    is_forced: torch.Tensor
    """[N] bool, True where the only continuation is a blank of one frame."""


class Expander:
    """Ranks continuations with an optional language model and boosting.

    The internal language model's part, `Scores.extra`, is external, too.
    """

    def __init__(self, config: TransducerConfig, fusion: Fusion, device: torch.device | str = "cpu"):
        self._blank = config.vocabulary_size
        self.fusion = fusion
        self._durations = torch.tensor(config.tdt_durations or (0,), dtype=torch.int64, device=device)
        self._is_first_duration = torch.arange(len(self._durations), device=device) == 0
        self._is_label = torch.arange(self._blank + 1, device=device) < self._blank

    def fuse(self, scores: Scores, states: FusionStates, is_forced: torch.Tensor) -> FusedScores:
        """Adds the external scores; is_forced: [N] bool, where only a blank of one frame is possible."""
        scores = self._with_forced(scores, is_forced)
        external = None if self.fusion.is_empty else self._external_of_all(scores, states)
        if scores.extra is not None:
            extra = torch.nn.functional.pad(scores.extra, (0, 1))  # nothing for blank
            external = extra if external is None else external + extra
        ranking = scores.log_probs if external is None else scores.log_probs + external
        return FusedScores(scores, external, ranking, is_forced)

    def rank(self, fused: FusedScores, limits: Limits) -> Expansions:
        """The best continuations by the fused scores, in no order."""
        scores, external = fused.network, fused.external
        # 1) the best labels: [N, W]
        best, labels = fused.ranking.topk(min(limits.max_width, self._blank + 1), dim=1)
        acoustic = best if external is None else scores.log_probs.gather(1, labels)
        ranking = limits.keep(best)
        # 2) each with all durations: [N, W * D]
        if scores.durations is not None:
            ranking = (ranking.unsqueeze(2) + scores.durations.unsqueeze(1)).flatten(1)
        # 3) prune
        ranking = limits.prune(ranking)
        if external is not None:
            external = external.gather(1, labels)
        # 4) the best pairs of label and duration: [N, W]
        if scores.durations is None:
            return Expansions(labels, (labels == self._blank).long(), ranking, acoustic, external)
        return self._best_pairs(ranking, (labels, acoustic, external), limits, fused.is_forced)

    def duration_scores(self, fused: FusedScores, frames: torch.Tensor) -> torch.Tensor:
        """Log-probability [N, W] that a label moves `frames` [N, W] on; minus infinity without such a duration."""
        durations = fused.network.durations
        if durations is None:
            return torch.where(frames == 0, 0.0, ABSENT)
        is_duration = frames.unsqueeze(2) == self._durations  # [N, W, D]
        return torch.where(is_duration, durations.unsqueeze(1), ABSENT).amax(dim=2)

    def _external_of_all(self, scores: Scores, states: FusionStates) -> torch.Tensor:
        """External scores [N, V + 1] of all labels and blank."""
        offset = label_offset(scores.blank, states.lm_weights)
        labels = self.fusion.score_all(states).scores + offset.unsqueeze(1)
        blank = blank_offset(scores.blank, states.lm_weights)
        return torch.cat([labels, blank.unsqueeze(1)], dim=1)

    def _with_forced(self, scores: Scores, is_forced: torch.Tensor) -> Scores:
        """Makes labels impossible where `is_forced` [N] holds; the blank there has its best duration's score."""
        is_forced = is_forced.unsqueeze(1)
        log_probs, durations = torch.where(is_forced & self._is_label, ABSENT, scores.log_probs), scores.durations
        if durations is not None:
            best = torch.where(self._is_first_duration, durations.amax(dim=1, keepdim=True), ABSENT)
            durations = torch.where(is_forced, best, durations)
        return scores._replace(log_probs=log_probs, durations=durations)

    def _best_pairs(
        self, ranking: torch.Tensor, choices: tuple[torch.Tensor | None, ...], limits: Limits, is_forced: torch.Tensor
    ) -> Expansions:
        """The best pairs of label and duration.

        ranking: [N, R * D]; choices: labels, acoustic and external scores, [N, R]; is_forced: [N] bool.
        """
        ranking, pair = ranking.topk(min(limits.max_width, ranking.shape[1]), dim=1)
        place = pair // len(self._durations)
        labels, acoustic, external = map_tensors(lambda field: field.gather(1, place), choices)
        jumps = torch.maximum(self._durations[pair % len(self._durations)], (labels == self._blank).long())
        jumps = torch.where(is_forced.unsqueeze(1), 1, jumps)
        return Expansions(labels, jumps, limits.keep(ranking), acoustic, external)
