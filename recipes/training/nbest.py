"""N-best lists of whole utterances with the weights of a head in training, from the batched beam search that serves.

ALSD++ ends with more live hypotheses than AES++. The lists are of the search alone: nothing adds the reference.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import fresh_states, with_choices
from penstock.decoding.beam.results import NBest
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair, ModelConfig
from recipes.training.head import TransducerHead


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
        """Those of some utterances, which keep their numbers."""
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
    """ALSD++ over whole utterances; each call first copies the head's weights into the network of the search."""

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
        self._network = self._open()
        self._search = BeamSearch(self._network, is_normalized=is_normalized)
        self._beam_size = beam_size

    def _open(self) -> TransducerNetwork:
        device = next(self._checkpoint.head.parameters()).device
        return open_network(cast(Checkpoint, self._checkpoint), device, kernels=TORCH)

    @torch.no_grad()
    def __call__(self, encoded: torch.Tensor, frame_counts: torch.Tensor) -> HypothesisLists:
        """The lists of B utterances; encoded: [B, T, D], frame_counts: [B] int64."""
        _refresh(self._network, self._open())
        batch, frames = encoded.shape[:2]
        # As much room as labels can need, so that no hypothesis is pruned for it.
        sizes = BeamSizes(self._beam_size, 0, self._search.algorithm.max_labels(frames))
        pairs = self._network.ilm_weights([self.pair] * batch)
        states = with_choices(fresh_states(self._network, batch, sizes), ilm=pairs)
        is_end = torch.ones(batch, dtype=torch.bool, device=encoded.device)
        projected = self._network.project_encoder(encoded)
        update, states = self._search.decode(projected, frame_counts, is_end, states)
        return _hypotheses(update.stable, self._search.n_best(states))


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


def _refresh(old: object, new: object) -> None:
    """Copies all tensors that an object of this package holds from another of its class; they keep their addresses.

    A packed weight, which only a CPU has and cannot be copied, is replaced.
    """
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        for one, other in zip(old, new, strict=True):
            _refresh(one, other)
    if not type(old).__module__.startswith("penstock.") or not hasattr(old, "__dict__"):
        return
    for name, value in vars(new).items():
        held = getattr(old, name)
        if not isinstance(value, torch.Tensor):
            _refresh(held, value)
        elif value.layout is torch.strided:
            held.copy_(value)
        else:
            setattr(old, name, value)


def _with_column(tokens: torch.Tensor) -> torch.Tensor:
    """One more column, so that there is one."""
    return torch.nn.functional.pad(tokens, (0, 1))
