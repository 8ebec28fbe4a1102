"""Perplexity of a language model on held-out sentences of labels."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from penstock.scoring.ngram.lm import NgramLm

_SENTENCES_AT_ONCE = 256


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
