"""What may follow a hypothesis: its best labels and durations with their scores, external ones included.

RNN-T is TDT with the one duration 0, of which a blank makes 1. Knows one hypothesis at a time, and no beam.
"""

from typing import NamedTuple

import torch

from penstock.config import TransducerConfig
from penstock.decoding.networks import Scores
from penstock.decoding.rows import map_rows, select_rows
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
    external_scores: torch.Tensor
    """The external part of `ranking_scores`."""


class Limits(NamedTuple):
    """What a hypothesis may be extended by."""

    widest: int
    """W at most."""
    widths: torch.Tensor
    """[N] int64, how many of the W best count, for streams that search less widely than others."""
    margin: float | None = None
    """Expansions that score this much below the hypothesis's best are pruned; None: none are."""

    def keep(self, ranking: torch.Tensor) -> torch.Tensor:
        """Of scores [N, up to W], best first, those that count; the others become -inf."""
        places = torch.arange(ranking.shape[1], device=ranking.device)
        return torch.where(places < self.widths.unsqueeze(1), ranking, float("-inf"))


class Expander:
    """Ranks continuations with an optional language model and boosting."""

    def __init__(self, config: TransducerConfig, fusion: Fusion, strategy: FusionStrategy, device="cpu"):
        self._blank = config.vocabulary_size
        self._fusion = fusion
        self._strategy = strategy
        self._durations = torch.tensor(config.tdt_durations or (0,), dtype=torch.int64, device=device)

    def rank(self, scores: Scores, rows: FusionRows, limits: Limits) -> Expansions:
        """The best continuations of N hypotheses. Late pruning ranks by everything, early by the acoustic scores."""
        is_late = self._strategy.pruning is Pruning.LATE
        external = self._external_of_all(scores, rows) if is_late else None
        ranking = scores.log_probs if external is None else scores.log_probs + external
        ranking, labels = ranking.topk(min(limits.widest, self._blank + 1), dim=1)
        ranking = limits.keep(ranking)
        durations = self._duration_scores(scores, ranking)
        ranking = ranking.unsqueeze(2) + durations.unsqueeze(1)  # [N, labels, D]
        if limits.margin is not None:
            best = ranking.amax(dim=(1, 2), keepdim=True)
            # The best one stays, at a margin of 0 too.
            ranking = torch.where(ranking >= best - limits.margin, ranking, float("-inf"))
        if external is not None:
            external = external.gather(1, labels)
        elif self._has_external(scores):
            external = self.external_of(scores, rows, labels)
            ranking = ranking + external.unsqueeze(2)
        else:
            external = torch.zeros_like(scores.log_probs[:, :1]).expand_as(labels)
        return self._best_pairs(ranking, labels, scores.log_probs.gather(1, labels), external, limits)

    def blanks(self, scores: Scores, rows: FusionRows) -> Expansions:
        """The one way on that is left where time is forced on by a frame: a blank. W is 1."""
        labels = torch.full_like(scores.blank, self._blank, dtype=torch.int64).unsqueeze(1)
        acoustic = scores.blank.unsqueeze(1)
        external = self.external_of(scores, rows, labels)
        durations = self._duration_scores(scores, acoustic).amax(dim=1, keepdim=True)
        return Expansions(labels, torch.ones_like(labels), acoustic + external + durations, acoustic, external)

    def label_scores(self, scores: Scores, rows: FusionRows, labels: torch.Tensor) -> torch.Tensor:
        """Fused log-probabilities [N, W] of `labels` [N, W] (no blanks), durations not included."""
        return scores.log_probs.gather(1, labels) + self.external_of(scores, rows, labels)

    def duration_scores(self, scores: Scores, frames: torch.Tensor) -> torch.Tensor:
        """Log-probability [N, W] of moving `frames` [N, W] on with a label; minus infinity where none does."""
        durations = self._duration_scores(scores, scores.blank)
        is_meant = frames.unsqueeze(2) == self._durations  # [N, W, D]
        return torch.where(is_meant, durations.unsqueeze(1), float("-inf")).amax(dim=2)

    def advance(self, rows: FusionRows, labels: torch.Tensor, is_label: torch.Tensor) -> FusionRows:
        """Where `labels` [N] lead from `rows`, where `is_label` [N] holds; else the same rows."""
        if self._fusion.is_empty:
            return rows
        _, new = self._fusion.advance(rows, torch.where(is_label, labels, 0))
        return select_rows(is_label, new, rows)

    def external_of(self, scores: Scores, rows: FusionRows, labels: torch.Tensor) -> torch.Tensor:
        """External scores [N, W] of `labels` [N, W], blank included."""
        if not self._has_external(scores):
            return torch.zeros_like(scores.log_probs[:, :1]).expand_as(labels)
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

    def _duration_scores(self, scores: Scores, like: torch.Tensor) -> torch.Tensor:
        """[N, D]"""
        return like.new_zeros(len(like), 1) if scores.durations is None else scores.durations

    def _best_pairs(
        self,
        ranking: torch.Tensor,
        labels: torch.Tensor,
        acoustic: torch.Tensor,
        external: torch.Tensor,
        limits: Limits,
    ) -> Expansions:
        """Of labels [N, R] and durations with the joint scores [N, R, D] the best pairs."""
        durations = ranking.shape[2]
        ranking, pair = ranking.flatten(1).topk(min(limits.widest, ranking[0].numel()), dim=1)
        ranking = limits.keep(ranking)
        place = pair // durations
        labels = labels.gather(1, place)
        jumps = self._durations[pair % durations]
        jumps = torch.maximum(jumps, (labels == self._blank).long())
        return Expansions(labels, jumps, ranking, acoustic.gather(1, place), external.gather(1, place))
