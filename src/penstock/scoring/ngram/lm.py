"""An n-gram language model on the device, for many hypotheses at once ("NGPU-LM" of arXiv 2505.22857); its perplexity.

Scores are natural logarithms, without a weight.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from penstock.kernels.capability import AUTO, FUSED, resolve
from penstock.kernels.contracts import NgramArcs
from penstock.scoring.automaton import AllTransitions, Transitions
from penstock.scoring.ngram.tables import NgramTables

_SENTENCES_AT_ONCE = 256


class NgramLm:
    """The automaton of a back-off model; complete, because a state without an arc backs off to a shorter context.

    After construction nothing here synchronizes with the host, allocates by content, or loops by content.
    """

    def __init__(self, tables: NgramTables, device: torch.device | str = "cpu", kernels: str = AUTO):
        """`tables` as `build_tables` makes them; copied to `device`. kernels: as `capability.resolve` has it."""
        self.vocabulary_size = len(tables.root_scores)
        self.order = int(tables.order[0])
        self.start_state = int(tables.start_state[0])
        """The state after `<s>`: where an utterance starts."""
        self.device = torch.device(device)
        # One more key, above all others: a search that ends beyond the last arc has something to compare with.
        nowhere = np.array([len(tables.backoff_scores) * self.vocabulary_size])
        starts, max_arcs = _arc_ranges(tables)
        self.arcs = NgramArcs(
            self._place(starts),
            self._place(np.append(tables.arc_keys, nowhere)),
            self._place(np.append(tables.arc_scores, np.float32(0))),
            self._place(np.append(tables.arc_states, 0)),
            self._place(tables.root_scores),
            self._place(tables.root_states),
            self._place(tables.backoff_scores),
            self._place(tables.backoff_states),
        )
        """The model itself, on the device."""
        self._final_scores = self._place(tables.final_scores)
        self._fan = torch.arange(max_arcs, device=self.device)
        self.kernels = resolve(kernels, self.device)
        """Implementation of `advance`: "torch" or "fused", for the log."""
        self._take: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
        if self.kernels == FUSED:
            from penstock.kernels.ngram import FusedNgramLookup  # here, because it imports Triton

            self._take = FusedNgramLookup(self.arcs, self.order)
        else:
            self._take = partial(take_arcs, self.arcs, self.order)
        self.arc_count = len(tables.arc_keys) + self.vocabulary_size
        self.state_count = len(tables.backoff_scores)

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        """Scores every label from `states` [N] int64. Working memory is that of the result."""
        return AllTransitions(self._scores(states), lambda labels: self.advance(states, labels).next_states)

    def _scores(self, states: torch.Tensor) -> torch.Tensor:
        arcs = self.arcs
        # 1) the contexts of each state down to the empty one, which has a score for every label
        contexts, penalties = back_off(arcs, self.order, states)
        scores = penalties[-1].unsqueeze(1) + arcs.root_scores
        # 2) arcs of longer contexts over those of shorter ones; column V takes what a state with fewer arcs leaves over
        scores = torch.nn.functional.pad(scores, (0, 1))
        for state, backoff in zip(reversed(contexts[:-1]), reversed(penalties[:-1]), strict=True):
            places = arcs.arc_starts[state].unsqueeze(1) + self._fan
            is_own = places < arcs.arc_starts[state + 1].unsqueeze(1)
            places = torch.where(is_own, places, 0)
            labels = arcs.arc_keys[places] - (state * self.vocabulary_size).unsqueeze(1)
            columns = torch.where(is_own, labels, self.vocabulary_size)
            scores.scatter_(1, columns, backoff.unsqueeze(1) + arcs.arc_scores[places])
        return scores[:, : self.vocabulary_size]

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        """Takes one transition from each of `states` [...] int64 by `labels` [...], 0 .. V-1 (not checked)."""
        return Transitions(*self._take(states, labels))

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of `</s>` from `states` [...] int64, back-off included."""
        return self._final_scores[states]

    def _place(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def take_arcs(
    arcs: NgramArcs, order: int, states: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes one arc from each of `states` [...] int64 by `labels` [...]; returns scores and next states [...].

    The reference of the kernel. Always follows `order` - 1 back-offs and searches all contexts at once.
    """
    contexts, penalties = back_off(arcs, order, states)
    scores = penalties[-1] + arcs.root_scores[labels]
    next_states = arcs.root_states[labels]
    if order > 1:
        keys = torch.stack(contexts[:-1]) * len(arcs.root_scores) + labels  # [order - 1, ...]
        places = torch.searchsorted(arcs.arc_keys, keys)
        is_found = arcs.arc_keys[places] == keys
        level_scores, level_states = arcs.arc_scores[places], arcs.arc_states[places]
        for level in range(order - 2, -1, -1):  # the longest context last, so that it wins
            scores = torch.where(is_found[level], penalties[level] + level_scores[level], scores)
            next_states = torch.where(is_found[level], level_states[level], next_states)
    return scores, next_states


def back_off(arcs: NgramArcs, order: int, states: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns `order` contexts of `states` [...], the longest first, and the back-off penalty of each, all [...]."""
    contexts, penalties = [states], [torch.zeros(states.shape, device=states.device)]
    for _ in range(order - 1):
        penalties.append(penalties[-1] + arcs.backoff_scores[contexts[-1]])
        contexts.append(arcs.backoff_states[contexts[-1]])
    return contexts, penalties


def _arc_ranges(tables: NgramTables) -> tuple[np.ndarray, int]:
    """First arc of each state [S + 1] int64, and the maximum arcs of a state, the empty context left out."""
    boundaries = np.arange(len(tables.backoff_scores) + 1) * len(tables.root_scores)
    starts = np.searchsorted(tables.arc_keys, boundaries)
    return starts.astype(np.int64), int(np.diff(starts).max(initial=0))


class Perplexity(NamedTuple):
    """Sums over whole sentences, `</s>` included."""

    log_probability: float
    """Natural logarithm of all sentences' probability."""
    sentences: int
    tokens: int
    """Labels, without `</s>`."""

    @property
    def per_token(self) -> float:
        """Perplexity per token, each `</s>` counted as a token; infinite without sentences."""
        events = self.tokens + self.sentences
        exponent = -self.log_probability / events if events else math.inf
        return math.exp(exponent) if exponent < 700 else math.inf


def measure_perplexity(lm: NgramLm, sentences: Iterable[Sequence[int]]) -> Perplexity:
    """Perplexity of sentences of labels 0 .. V-1, scored from `<s>` to `</s>` in batches."""
    log_probability, count, tokens = 0.0, 0, 0
    remaining = iter(sentences)
    while batch := list(islice(remaining, _SENTENCES_AT_ONCE)):
        log_probability += sum(score_sentences(lm, batch))
        count += len(batch)
        tokens += sum(map(len, batch))
    return Perplexity(log_probability, count, tokens)


@torch.inference_mode()
def score_sentences(lm: NgramLm, sentences: Sequence[Sequence[int]]) -> list[float]:
    """Natural logarithm of each sentence's probability, `</s>` included; all sentences advance together."""
    max_length = max(map(len, sentences), default=0)
    states = torch.full((len(sentences),), lm.start_state, device=lm.device)
    totals = torch.zeros(len(sentences), dtype=torch.float64, device=lm.device)
    lengths = torch.tensor([len(sentence) for sentence in sentences], device=lm.device)
    padded = [list(sentence) + [0] * (max_length - len(sentence)) for sentence in sentences]
    labels = torch.tensor(padded, dtype=torch.int64, device=lm.device).reshape(len(sentences), max_length)
    for place in range(max_length):
        transitions = lm.advance(states, labels[:, place])
        is_inside = place < lengths
        totals += torch.where(is_inside, transitions.scores, 0.0)
        states = torch.where(is_inside, transitions.next_states, states)
    return (totals + lm.final_scores(states)).tolist()
