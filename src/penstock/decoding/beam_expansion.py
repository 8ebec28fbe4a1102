"""What may follow each hypothesis: its best labels and durations with their scores, external ones included.

RNN-T is TDT with the one duration 0, of which a blank makes 1. No hypothesis knows of another; N = B * K of them, K for
each of B streams.
"""

from typing import NamedTuple

import torch

from penstock.config import TransducerConfig
from penstock.decoding.beam_hyps import ABSENT
from penstock.decoding.networks import Scores
from penstock.decoding.rows import map_rows
from penstock.fusion.blank_scoring import FusionStrategy, Pruning, blank_offset, label_offset
from penstock.fusion.fusion import Fusion, FusionRows


class Expansions(NamedTuple):
    """W ways to go on for each of N hypotheses, all [N, W]."""

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
    """What the hypotheses of B streams may be extended by."""

    beam_size: int
    """K"""
    beam_sizes: torch.Tensor
    """[B] int64, 1 .. K hypotheses that each stream may have: it searches less widely than others."""
    extra: int = 0
    """A hypothesis's best beam size + extra ways on count."""
    margin: float | None = None
    """Expansions that score this much below the hypothesis's best are pruned; None: none are."""

    @property
    def widest(self) -> int:
        """W at most."""
        return self.beam_size + self.extra

    def keep(self, ranking: torch.Tensor) -> torch.Tensor:
        """Of scores [B * K, up to W], best first, those that count; the others become -inf."""
        places = torch.arange(ranking.shape[1], device=ranking.device)
        counts = places < (self.beam_sizes + self.extra).unsqueeze(1)  # [B, W]
        return torch.where(counts.unsqueeze(1), ranking.unflatten(0, (-1, self.beam_size)), ABSENT).flatten(0, 1)

    def prune(self, ranking: torch.Tensor) -> torch.Tensor:
        """Of scores [B * K, ...] those within the margin; the others become -inf."""
        if self.margin is None:
            return ranking
        # The best one stays, at a margin of 0 too.
        return torch.where(ranking >= ranking.amax(dim=1, keepdim=True) - self.margin, ranking, ABSENT)


class FusedScores(NamedTuple):
    """What network and automata say of N hypotheses at their frames; rubbish where a hypothesis has no frame."""

    network: Scores
    """Where time is forced on, labels are impossible."""
    rows: FusionRows
    """Fields [N], where the hypotheses stand in the automata."""
    external: torch.Tensor | None
    """[N, V + 1], for late pruning; None where there is nothing external, and for early pruning."""
    ranking: torch.Tensor
    """[N, V + 1], log-probabilities with `external`."""
    is_forced: torch.Tensor
    """[N] bool, where nothing is left but to let time move on by a frame, with a blank."""


class Expander:
    """Ranks continuations with an optional language model and boosting."""

    def __init__(self, config: TransducerConfig, fusion: Fusion, strategy: FusionStrategy, device="cpu"):
        self._blank = config.vocabulary_size
        self._fusion = fusion
        self._strategy = strategy
        self._durations = torch.tensor(config.tdt_durations or (0,), dtype=torch.int64, device=device)
        self._is_first_duration = torch.arange(len(self._durations), device=device) == 0
        self._is_label = torch.arange(self._blank + 1, device=device) < self._blank

    def fuse(self, scores: Scores, rows: FusionRows, is_forced: torch.Tensor) -> FusedScores:
        """Puts together what `rank` and the rest work on; see there."""
        scores = self._with_forced(scores, is_forced)
        external = self._external_of_all(scores, rows) if self._strategy.pruning is Pruning.LATE else None
        ranking = scores.log_probs if external is None else scores.log_probs + external
        return FusedScores(scores, rows, external, ranking, is_forced)

    def rank(self, fused: FusedScores, limits: Limits) -> Expansions:
        """The best continuations, in no order. Late pruning ranks by everything, early by the acoustic scores."""
        scores, external = fused.network, fused.external
        best, labels = fused.ranking.topk(min(limits.widest, self._blank + 1), dim=1)
        acoustic = best if external is None else scores.log_probs.gather(1, labels)
        ranking = limits.keep(best)
        if scores.durations is not None:
            ranking = (ranking.unsqueeze(2) + scores.durations.unsqueeze(1)).flatten(1)  # [N, labels * D]
        ranking = limits.prune(ranking)
        if external is not None:
            external = external.gather(1, labels)
        elif self._has_external(scores):
            external = self._external_of(fused, labels)
            ranking = (ranking.unflatten(1, (-1, len(self._durations))) + external.unsqueeze(2)).flatten(1)
        if scores.durations is None:
            return Expansions(labels, (labels == self._blank).long(), ranking, acoustic, external)
        return self._best_pairs(ranking, (labels, acoustic, external), limits, fused.is_forced)

    def label_scores(self, fused: FusedScores, labels: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [N, W] of `labels` [N, W] (no blanks) with external scores, durations not included."""
        found = fused.ranking.gather(1, labels)
        if fused.external is not None or not self._has_external(fused.network):
            return found
        return found + self._external_of(fused, labels)

    def duration_scores(self, fused: FusedScores, frames: torch.Tensor) -> torch.Tensor:
        """Log-probability [N, W] of moving `frames` [N, W] on with a label; minus infinity where none does."""
        durations = fused.network.durations
        if durations is None:
            return torch.where(frames == 0, 0.0, ABSENT)
        is_meant = frames.unsqueeze(2) == self._durations  # [N, W, D]
        return torch.where(is_meant, durations.unsqueeze(1), ABSENT).amax(dim=2)

    def states(self, rows: FusionRows) -> tuple[torch.Tensor, ...]:
        """What labels move of `rows`: nothing where there are no automata."""
        return () if self._fusion.is_empty else (rows.lm_states, rows.boost_states)

    def advance(
        self, states: tuple[torch.Tensor, ...], lm_weights: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Where `labels` [N] (no blanks) lead from `states`, tensors [N]; lm_weights: [N]."""
        if self._fusion.is_empty:
            return states
        return self.states(self._fusion.advance(FusionRows(*states, lm_weights), labels)[1])

    def _external_of(self, fused: FusedScores, labels: torch.Tensor) -> torch.Tensor:
        """External scores [N, W] of `labels` [N, W], blank included."""
        scores, rows = fused.network, fused.rows
        is_blank = labels == self._blank
        safe = torch.where(is_blank, 0, labels)
        total = torch.zeros_like(scores.log_probs[:, :1]).expand_as(labels)
        if scores.extra is not None:
            total = total + scores.extra.gather(1, safe)
        if self._fusion.is_empty:
            return torch.where(is_blank, 0.0, total)
        width = labels.shape[1]
        repeated = map_rows(lambda t: t.repeat_interleave(width, dim=0), rows)
        total = total + self._fusion.advance(repeated, safe.flatten())[0].view(labels.shape)
        total = total + label_offset(scores.blank, rows.lm_weights, self._strategy).unsqueeze(1)
        return torch.where(is_blank, blank_offset(scores.blank, rows.lm_weights, self._strategy).unsqueeze(1), total)

    def _has_external(self, scores: Scores) -> bool:
        return scores.extra is not None or not self._fusion.is_empty

    def _external_of_all(self, scores: Scores, rows: FusionRows) -> torch.Tensor | None:
        """[N, V + 1], or None where there is nothing external."""
        if not self._has_external(scores):
            return None
        total = torch.zeros_like(scores.labels) if scores.extra is None else scores.extra
        blank = torch.zeros_like(scores.blank)
        if not self._fusion.is_empty:
            total = total + self._fusion.label_scores(rows)
            total = total + label_offset(scores.blank, rows.lm_weights, self._strategy).unsqueeze(1)
            blank = blank_offset(scores.blank, rows.lm_weights, self._strategy)
        return torch.cat([total, blank.unsqueeze(1)], dim=1)

    def _with_forced(self, scores: Scores, is_forced: torch.Tensor) -> Scores:
        """Where `is_forced` [N] holds no label is possible, and the blank has its best duration's score."""
        is_forced = is_forced.unsqueeze(1)
        log_probs, durations = torch.where(is_forced & self._is_label, ABSENT, scores.log_probs), scores.durations
        if durations is not None:
            best = torch.where(self._is_first_duration, durations.amax(dim=1, keepdim=True), ABSENT)
            durations = torch.where(is_forced, best, durations)
        return scores._replace(log_probs=log_probs, durations=durations)

    def _best_pairs(self, ranking: torch.Tensor, found: tuple, limits: Limits, is_forced: torch.Tensor) -> Expansions:
        """The best pairs of a label and a duration: ranking [N, R * D]; found: labels, two kinds of scores, [N, R]."""
        ranking, pair = ranking.topk(min(limits.widest, ranking.shape[1]), dim=1)
        place = pair // len(self._durations)
        labels, acoustic, external = map_rows(lambda field: field.gather(1, place), found)
        jumps = torch.maximum(self._durations[pair % len(self._durations)], (labels == self._blank).long())
        jumps = torch.where(is_forced.unsqueeze(1), 1, jumps)
        return Expansions(labels, jumps, limits.keep(ranking), acoustic, external)
