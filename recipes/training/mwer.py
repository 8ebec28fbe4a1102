"""Minimum word error rate training (MWER): the expected word errors of an N-best list.

"Effective internal language model training and fusion for factorized transducer model", eq. 6, with the alignment
restriction of its section 3.3: the probability of a hypothesis is summed over a band around its best path. The lists
are those of the batched beam search that serves, with the weights of a head in training, and of the search alone:
nothing adds the reference. ALSD++ ends with more live hypotheses than AES++.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import fresh_states, with_choices
from penstock.decoding.beam.results import NBest
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.networks import open_network
from penstock.evaluation.errors import compare
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair, ModelConfig
from recipes.training.encoded import EncodedBatch
from recipes.training.heads import TransducerHead
from recipes.training.lattice import band_cells

_BAND_ENCODER_FRAMES = 4
"""Frames before and after a label's time in which it may be emitted. At 80 ms per frame a band of 4 changes the loss of
an RNN-T's best hypotheses by less than 1e-3 nats, of a factorized head's by some more."""
_REFERENCE_WEIGHT = 0.05
"""Weight of eq. 1 of the reference, which keeps the times of the labels."""


class HypothesisLists(NamedTuple):
    """N hypotheses of B utterances: those of an utterance follow each other, best first. U: the most labels."""

    rows: torch.Tensor
    """[N] int64, the utterance."""
    labels: torch.Tensor
    """[N, U] int64, zeros after the end."""
    times: torch.Tensor
    """[N, U] int64, the encoder frame of each label in the hypothesis's best path; zeros after the end."""
    label_counts: torch.Tensor
    """[N] int64"""
    scores: torch.Tensor
    """[N] float64, log-probabilities of eq. 5, of the alignments that the search kept."""
    acoustic_scores: torch.Tensor
    """[N] float64, the same of eq. 4."""

    def label_lists(self) -> list[list[int]]:
        """The labels of each hypothesis."""
        return [row[:count] for row, count in zip(self.labels.tolist(), self.label_counts.tolist(), strict=True)]

    def best(self) -> list[list[int]]:
        """The labels of each utterance's best hypothesis."""
        found: dict[int, list[int]] = {}
        for row, labels in zip(self.rows.tolist(), self.label_lists(), strict=True):
            found.setdefault(row, labels)
        return list(found.values())

    def of_utterances(self, rows: list[int]) -> "HypothesisLists":
        """Lists of some utterances, which keep their numbers."""
        kept = torch.isin(self.rows, torch.tensor(rows, device=self.rows.device))
        return HypothesisLists(*(field[kept] for field in self))


@dataclass(frozen=True)
class _LiveCheckpoint:
    """The part of a `Checkpoint` that a network reads, with the present weights of a head."""

    config: ModelConfig
    head: TransducerHead

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.head.tensors().items() if not prefixes or name.startswith(prefixes)}


class NBestSearch:
    """ALSD++ over whole utterances; each call opens the network with the head's present weights."""

    def __init__(
        self,
        model: ModelConfig,
        head: TransducerHead,
        beam_size: int = 4,
        pair: IlmPair | None = None,
        is_normalized: bool = False,
    ):
        """model: that of the encoder; pair: weights of the internal language model, (1, 0) by default.

        is_normalized: whether lists are ranked by score / (labels + 1); MWER ranks by the score.
        """
        self.pair = pair or IlmPair()
        self._checkpoint = _LiveCheckpoint(dataclasses.replace(model, transducer=head.config), head)
        self._beam_size, self._is_normalized = beam_size, is_normalized

    @torch.no_grad()
    def __call__(self, encoded: torch.Tensor, frame_counts: torch.Tensor) -> HypothesisLists:
        """The lists of B utterances; encoded: [B, T, D], frame_counts: [B] int64."""
        network = open_network(cast(Checkpoint, self._checkpoint), encoded.device, kernels=TORCH)
        search = BeamSearch(network, is_normalized=self._is_normalized)
        batch, frames = encoded.shape[:2]
        # As much room as labels can need, so that no hypothesis is pruned for it.
        sizes = BeamSizes(self._beam_size, 0, search.algorithm.max_labels(frames))
        pairs = network.ilm_weights([self.pair] * batch)
        states = with_choices(fresh_states(network, batch, sizes), ilm=pairs)
        is_end = torch.ones(batch, dtype=torch.bool, device=encoded.device)
        projected = network.project_encoder(encoded)
        update, states = search.decode(projected, frame_counts, is_end, states)
        return _hypotheses(update.stable, search.n_best(states))


def _hypotheses(stable: TokenLists, found: NBest) -> HypothesisLists:
    """Joins the labels that all hypotheses of an utterance share with the rest of each, [B, K] -> [N]."""
    rows, places = (found.scores > float("-inf")).nonzero(as_tuple=True)
    firsts, counts = stable.lengths[rows], found.lengths[rows, places]
    position = torch.arange(max(int(counts.max()), 1), device=rows.device)
    is_stable = position < firsts.unsqueeze(1)

    def joined(shared: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """shared: [B, M'], own: [B, K, M] -> [N, U]"""
        shared, own = _with_column(shared)[rows], _with_column(own)[rows, places]
        first = shared.gather(1, position.clamp(max=shared.shape[1] - 1).expand(len(rows), -1))
        rest = own.gather(1, (position - firsts.unsqueeze(1)).clamp(0, own.shape[1] - 1))
        return torch.where(position < counts.unsqueeze(1), torch.where(is_stable, first, rest), 0)

    labels = joined(stable.tokens.labels, found.unstable.tokens.labels)
    times = joined(stable.tokens.timestamps, found.unstable.tokens.timestamps)
    scores, acoustic = found.scores[rows, places], found.acoustic_scores[rows, places]
    # Clones: the search's tensors are of the inference mode, and a gradient could not be computed with them.
    return HypothesisLists(*(t.clone() for t in (rows, labels, times, counts, scores, acoustic)))


def _with_column(tokens: torch.Tensor) -> torch.Tensor:
    """One more column, so that there is one."""
    return torch.nn.functional.pad(tokens, (0, 1))


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

    def __init__(self, head: TransducerHead, search: NBestSearch, text_of: Callable[[list[int]], str]):
        """search: finds the hypotheses with the head's present weights; text_of: of a hypothesis's labels."""
        self._head, self._search, self._text_of = head, search, text_of
        self.word_errors = 0
        """Word errors of the best hypotheses so far."""
        self.words = 0
        """Words of the references so far."""
        self.skipped = 0
        """Utterances so far whose hypotheses all had the same number of errors."""

    def __call__(self, batch: EncodedBatch) -> torch.Tensor:
        """The scalar loss; calls the search."""
        lists = self._search(batch.encoded.detach(), batch.frame_counts)
        errors = self._errors(lists, batch)
        losses = self._head.losses(batch.encoded, batch.frame_counts, batch.labels, batch.label_counts)
        by_reference = losses * _REFERENCE_WEIGHT
        # Only lists with unlike errors have a gradient.
        unlike = [i for i, row in enumerate(errors) if len(set(row)) > 1]
        self.skipped += len(errors) - len(unlike)
        if not unlike:
            return by_reference.mean()
        hypotheses = lists.of_utterances(unlike)
        scores = hypothesis_scores(self._head, batch.encoded, batch.frame_counts, hypotheses, self._search.pair)
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


def hypothesis_scores(
    head: TransducerHead,
    encoded: torch.Tensor,
    frame_counts: torch.Tensor,
    hypotheses: HypothesisLists,
    pair: IlmPair,
) -> torch.Tensor:
    """The scores of eq. 6, [N] float64: log P_alpha(y|x) within the band, and beta log P_ilm(y).

    encoded: [B, T, D]; frame_counts: [B] int64.
    """
    labels, counts = hypotheses.labels, hypotheses.label_counts
    cells = band_cells(frame_counts[hypotheses.rows], counts, hypotheses.times, _BAND_ENCODER_FRAMES)
    scores = head.log_probability(encoded, hypotheses.rows, labels, cells, pair.alpha)
    if head.ilm is None or not pair.beta:
        return scores
    return scores + pair.beta * head.ilm.log_probability(labels, counts)


def _padded(scores: torch.Tensor, errors: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of unlike lengths as [B, K] each; minus infinity is the score where there is no hypothesis."""
    pad = torch.nn.utils.rnn.pad_sequence
    rows = pad(scores.split(counts), batch_first=True, padding_value=float("-inf"))
    return rows, pad(errors.split(counts), batch_first=True)
