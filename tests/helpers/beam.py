"""Drives beam search in tests: in double precision, so that rounding decides nothing; whole and in random chunks."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import BeamStates, fresh_states, with_choices
from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair
from penstock.scoring.automaton import AllTransitions, Transitions
from penstock.scoring.fusion import FusionStates
from tests.helpers.random_models import head, random_checkpoint
from tests.helpers.reference.beam import BeamReference, Hypothesis, PlainFusion
from tests.helpers.reference.greedy import Label
from tests.helpers.streaming import NAN

VOCABULARY = 48


class Found(NamedTuple):
    """One finished hypothesis."""

    labels: list[Label]
    score: float
    acoustic: float


@dataclass
class Choices:
    """Choices of the streams of a batch; None: the default."""

    beam_sizes: list[int] | None = None
    weights: list[float] | None = None
    pairs: list[IlmPair] | None = None


def make(directory: Path, seed: int, durations=(), blank_rate: float = 0.5) -> tuple[Checkpoint, TransducerNetwork]:
    """durations: see `head`, or the pair of a factorized transducer."""
    checkpoint = random_checkpoint(directory, seed, blank_rate=blank_rate, **head(durations))
    return checkpoint, open_network(checkpoint, dtype=torch.float64)


def labels_of(lists: TokenLists, *row: int) -> list[Label]:
    count = int(lists.lengths[row])
    columns = (field[row][:count].tolist() for field in lists.tokens[:4])
    return [Label(*values) for values in zip(*columns, strict=True)]


def start(network: TransducerNetwork, batch: int, sizes: BeamSizes, choices: Choices | None = None) -> BeamStates:
    choices = choices or Choices()
    beam_sizes = None if choices.beam_sizes is None else torch.tensor(choices.beam_sizes)
    fusion = None
    if choices.weights is not None:
        zeros = torch.zeros(batch, dtype=torch.int64)
        fusion = FusionStates(zeros, zeros, torch.tensor(choices.weights))
    ilm = () if choices.pairs is None else network.ilm_weights(choices.pairs)
    return with_choices(fresh_states(network, batch, sizes), beam_sizes, fusion, ilm)


def search_whole(
    network: TransducerNetwork,
    search: BeamSearch,
    streams: list[torch.Tensor],
    sizes: BeamSizes,
    choices: Choices | None = None,
) -> list[list[Found]]:
    """The n best of all streams [T, D], in one batch and one chunk."""
    lengths = torch.tensor([len(stream) for stream in streams])
    encoded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=NAN)
    states = start(network, len(streams), sizes, choices)
    update, states = search.decode(network.project_encoder(encoded), lengths, torch.ones(len(streams)).bool(), states)
    return n_best_of(search, states, [labels_of(update.stable, row) for row in range(len(streams))])


def n_best_of(search: BeamSearch, states: BeamStates, stable: list[list[Label]]) -> list[list[Found]]:
    best = search.n_best(states)
    found = []
    for row, prefix in enumerate(stable):
        count = int((best.scores[row] > -torch.inf).sum())
        assert count > 0
        found.append(
            [
                Found(
                    prefix + labels_of(best.unstable, row, k),
                    float(best.scores[row, k]),
                    float(best.acoustic_scores[row, k]),
                )
                for k in range(count)
            ]
        )
        assert [len(one.labels) for one in found[-1]] == best.lengths[row, :count].tolist()
    return found


@dataclass
class Chunked:
    """Streams decoded in random chunks."""

    n_best: list[list[Found]]
    states: BeamStates
    partial: list[list[list[Label]]]
    """For each stream and chunk, the labels of its best hypothesis."""
    stable: list[list[int]]
    """For each stream and chunk, the number of stable labels."""


def search_in_chunks(
    network: TransducerNetwork,
    search: BeamSearch,
    streams: list[torch.Tensor],
    states: BeamStates,
    chance: random.Random,
    max_frames: int = 5,
) -> Chunked:
    """All streams in one batch, in chunks of 0 .. max_frames frames each; they end at different times."""
    count = len(streams)
    stable: list[list[Label]] = [[] for _ in streams]
    partial, stable_counts = [[] for _ in streams], [[] for _ in streams]
    position, is_done = [0] * count, [False] * count
    while not all(is_done):
        parts = [s[at : at + chance.randint(0, max_frames)] for at, s in zip(position, streams, strict=True)]
        encoded = torch.full((count, max_frames + chance.randint(0, 2), streams[0].shape[1]), NAN)
        is_end = [False] * count
        for row, part in enumerate(parts):
            encoded[row, : len(part)] = part
            position[row] += len(part)
            is_end[row] = is_done[row] or (position[row] == len(streams[row]) and chance.random() < 0.7)
            is_done[row] = is_end[row]
        lengths = torch.tensor([len(part) for part in parts])
        update, states = search.decode(network.project_encoder(encoded), lengths, torch.tensor(is_end), states)
        for row in range(count):
            stable[row] += labels_of(update.stable, row)
            partial[row].append(stable[row] + labels_of(update.unstable, row))
            stable_counts[row].append(len(stable[row]))
    return Chunked(n_best_of(search, states, stable), states, partial, stable_counts)


SCORE_ERROR = 1e-9
"""Bound of a hypothesis's float64 score computed with two orders of summation. A log-probability is the end of five
layers of sums of at most n = 48 terms, whose absolute values add up to less than 30, so that each layer is off by at
most n u 30 = 1.6e-13 times the 15 that the later weights add up to: 1.2e-11. A stream has up to 80 of them."""
LABEL_SCORE_ERROR = 1e-5
"""Scores of labels are float32: both are rounded, and less than 64, where half a unit in the last place is 1.9e-6."""


def assert_same_beam(found: list[Found], expected: list[Found], atol: float = SCORE_ERROR) -> None:
    """Asserts equal hypotheses in equal order: labels, times and durations exactly, scores within `atol`."""
    assert [[label[:3] for label in one.labels] for one in found] == [
        [label[:3] for label in one.labels] for one in expected
    ]
    for field in (1, 2):
        a, b = (torch.tensor([one[field] for one in beam], dtype=torch.float64) for beam in (found, expected))
        torch.testing.assert_close(a, b, atol=atol, rtol=0)
    scores = [torch.tensor([label.score for one in beam for label in one.labels]) for beam in (found, expected)]
    torch.testing.assert_close(*scores, atol=LABEL_SCORE_ERROR, rtol=0)


def from_reference(beam: list[Hypothesis], final: torch.Tensor | None = None) -> list[Found]:
    """Distinct label sequences by score / (labels + 1), best first."""
    found = []
    for hypothesis in beam:
        ending = 0.0 if final is None else float(final[hypothesis.lm_state])
        score = hypothesis.score + ending
        found.append(Found(hypothesis.labels, score, score - hypothesis.external - ending))
    found.sort(key=lambda one: -one.score / (len(one.labels) + 1))
    seen: set[tuple[int, ...]] = set()
    kept = []
    for one in found:
        ids = tuple(label.id for label in one.labels)
        if ids not in seen:
            kept.append(one)
        seen.add(ids)
    return kept


def reference(checkpoint: Checkpoint, beam_size: int, **options: object) -> BeamReference:
    tensors = checkpoint.tensors("predictor.", "joint.", "blank.", "acoustic.")
    return BeamReference(checkpoint.config.transducer, tensors, beam_size, **options)


class TableAutomaton:
    """An automaton as tables: scores [states, V], next_states [states, V], final [states]."""

    def __init__(self, seed: int, states: int = 7, vocabulary_size: int = VOCABULARY):
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary_size = vocabulary_size
        self.scores = (torch.randn(states, vocabulary_size, generator=generator) * 1.5).log_softmax(dim=1)
        self.next_states = torch.randint(states, (states, vocabulary_size), generator=generator)
        self.final = torch.randn(states, generator=generator) - 2.0

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        return AllTransitions(self.scores[states], lambda labels: self.next_states[states, labels])

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        return Transitions(self.scores[states, labels], self.next_states[states, labels])

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        return self.final[states]

    def plain(self, weight: float, **options: object) -> PlainFusion:
        """The automaton for the reference."""
        return PlainFusion(self.scores, self.next_states, self.final, weight, **options)
