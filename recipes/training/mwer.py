"""Minimum word error rate training (MWER): the expected word errors of an N-best list.

"Effective internal language model training and fusion for factorized transducer model", eq. 6, with the alignment
restriction of its section 3.3: the probability of a hypothesis is summed over a band around its best path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from penstock.evaluation.errors import compare
from penstock.model.config import IlmPair
from recipes.training.cells import band_cells
from recipes.training.encoded import EncodedBatch
from recipes.training.head import TransducerHead
from recipes.training.nbest import HypothesisLists, NBestSearch


@dataclass(frozen=True)
class MwerConfig:
    """Hyperparameters."""

    band_encoder_frames: int = 4
    """Frames before and after a label's time in which it may be emitted. At 80 ms per frame a band of 4 changes the
    loss of an RNN-T's best hypotheses by less than 1e-3 nats, of a factorized head's by some more
    (docs/factorized.md)."""
    reference_weight: float = 0.05
    """Weight of eq. 1 of the reference, which keeps the times of the labels."""


def expected_errors(scores: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Eq. 6, less the list's mean: sum of P_i (R_i - mean R), where P = softmax(scores). [..., K] -> [...].

    scores: log-probabilities, minus infinity where there is no hypothesis; errors: R, word errors of the hypotheses.
    The gradient of score i is P_i (R_i - sum of P R).
    """
    is_present = scores > float("-inf")
    present = torch.where(is_present, errors.to(scores.dtype), 0.0)
    mean = present.sum(-1, keepdim=True) / is_present.sum(-1, keepdim=True)
    return (torch.softmax(scores, dim=-1) * (present - mean)).sum(-1)


class MwerLoss:
    """The loss of a batch, averaged over its utterances."""

    def __init__(
        self,
        head: TransducerHead,
        search: NBestSearch,
        text_of: Callable[[list[int]], str],
        config: MwerConfig | None = None,
    ):
        """search: finds the hypotheses with the head's present weights; text_of: of a hypothesis's labels."""
        self._head, self._search, self._text_of = head, search, text_of
        self._config = config or MwerConfig()
        self.word_errors = 0
        """Of the best hypotheses so far."""
        self.words = 0
        """Of the references so far."""
        self.skipped = 0
        """Utterances so far whose hypotheses all had the same number of errors."""

    def __call__(self, batch: EncodedBatch) -> torch.Tensor:
        """The scalar loss; calls the search."""
        lists = self._search(batch.encoded.detach(), batch.frame_counts)
        errors = self._errors(lists, batch)
        by_reference = torch.zeros(len(errors), dtype=torch.float64, device=batch.encoded.device)
        if self._config.reference_weight:
            losses = self._head.losses(batch.encoded, batch.frame_counts, batch.labels, batch.label_counts)
            by_reference = losses * self._config.reference_weight
        # Only lists with unlike errors have a gradient.
        unlike = [i for i, row in enumerate(errors) if len(set(row)) > 1]
        self.skipped += len(errors) - len(unlike)
        if not unlike:
            return by_reference.mean()
        hypotheses = lists.of_utterances(unlike)
        scores = hypothesis_scores(
            self._head, batch.encoded, batch.frame_counts, hypotheses, self._search.pair,
            self._config.band_encoder_frames,
        )  # fmt: skip
        wrong = torch.tensor([r for i in unlike for r in errors[i]], device=scores.device)
        expected = expected_errors(*_padded(scores, wrong, [len(errors[i]) for i in unlike]))
        return (expected.sum() + by_reference.sum()) / len(errors)

    def summary(self) -> str:
        """Word errors of the best hypotheses so far and how many lists had no gradient, as a line of text."""
        rate = 100 * self.word_errors / max(self.words, 1)
        return f"N-best lists: {rate:.1f} % WER of the best, {self.skipped} skipped"

    def _errors(self, lists: HypothesisLists, batch: EncodedBatch) -> list[list[int]]:
        """Word errors of each hypothesis of each utterance."""
        found: list[list[int]] = [[] for _ in batch.references]
        for row, labels in zip(lists.rows.tolist(), lists.label_lists(), strict=True):
            found[row].append(compare(batch.references[row], self._text_of(labels)).words.edits)
        self.word_errors += sum(row[0] for row in found)
        self.words += sum(len(reference.split()) for reference in batch.references)
        return found


@dataclass(frozen=True)
class MwerSteps:
    """MWER in some of the steps of a `Trainer`, beside its usual losses. The gradient reaches the encoder."""

    head: str
    """Name of the head whose weights are those of the loss's head."""
    loss: MwerLoss
    weight: float
    every: int = 3
    """Every how many steps. The search takes more time than the usual losses."""

    def is_due(self, step: int, head: str) -> bool:
        """Whether the step with this number, from 0, which trains `head`, has the loss."""
        return head == self.head and step % self.every == 0


def hypothesis_scores(
    head: TransducerHead,
    encoded: torch.Tensor,
    frame_counts: torch.Tensor,
    hypotheses: HypothesisLists,
    pair: IlmPair,
    band_encoder_frames: int,
) -> torch.Tensor:
    """The scores of eq. 6, [N] float64: log P_alpha(y|x) within the band, and beta log P_ilm(y).

    encoded: [B, T, D]; frame_counts: [B] int64.
    """
    labels, counts = hypotheses.labels, hypotheses.label_counts
    band = (band_encoder_frames, band_encoder_frames)
    cells = band_cells(frame_counts[hypotheses.rows], counts, hypotheses.times, *band)
    scores = head.log_probability(encoded, hypotheses.rows, labels, cells, pair.alpha)
    if head.ilm is None or not pair.beta:
        return scores
    return scores + pair.beta * head.ilm.log_probability(labels, counts)


def _padded(scores: torch.Tensor, errors: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of unlike lengths as [B, K] each; minus infinity is the score where there is no hypothesis."""
    pad = torch.nn.utils.rnn.pad_sequence
    rows = pad(scores.split(counts), batch_first=True, padding_value=float("-inf"))
    return rows, pad(errors.split(counts), batch_first=True)
