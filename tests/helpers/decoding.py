"""Drives the searches in tests: batches of streams in random chunks, with NaN after their ends."""

import random
from typing import Protocol

import torch

from penstock.decoding.greedy.memory import BatchedHyps, GreedyStates, fresh_states
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair
from tests.helpers.reference.greedy import GreedyReference, Label
from tests.helpers.streaming import NAN

DURATIONS = ((), (0, 1), (0, 1, 2, 3, 4), (0, 2, 4), (1, 0, 3), (2, 5), (1,), (0, 9))
"""RNN-T, and TDT with lists of every kind: dense, with gaps, unsorted, without 0, of one, with long jumps."""

PAIRS = (IlmPair(1.0, 0.0), IlmPair(0.6, 0.6))
"""Factorized transducers by equation 4, which is equation 5 without its additional term, and by equation 5."""
HEADS = (*DURATIONS, *PAIRS)

SCORE_ERROR = 1e-4
"""Bound of a float32 log-probability. Rounding errors have either sign: a sum is off by about u times the sum of its
terms' absolute values: up to 220 before the joint's activation, in golden models. These errors of 20 units meet output
weights of 17 in all, also of either sign: 220 u 17 / sqrt(20) = 5e-5. The output's own sum of 51 is off by 3e-6."""


class Search(Protocol):
    """Interface of the searches."""

    def decode(
        self, projected_frames: torch.Tensor, lengths: torch.Tensor, states: GreedyStates
    ) -> tuple[BatchedHyps, GreedyStates]:
        """Decodes one chunk."""


def labels_of(hyps: BatchedHyps, row: int) -> list[Label]:
    """One row's labels."""
    count = int(hyps.lengths[row])
    columns = (hyps.labels, hyps.timestamps, hyps.durations, hyps.scores)
    return [Label(*values) for values in zip(*(column[row, :count].tolist() for column in columns), strict=True)]


def decode_whole(
    network: TransducerNetwork, search: Search, streams: list[torch.Tensor], start: GreedyStates | None = None
) -> list[list[Label]]:
    """All streams [T, D] in one batch and one chunk; start: their states, fresh ones by default."""
    lengths = torch.tensor([len(stream) for stream in streams])
    encoded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=NAN)
    states = fresh_states(network, len(streams)) if start is None else start
    hyps, _ = search.decode(network.project_encoder(encoded), lengths, states)
    return [labels_of(hyps, row) for row in range(len(streams))]


def decode_in_chunks(
    network: TransducerNetwork, search: Search, streams: list[torch.Tensor], chance: random.Random, max_frames: int = 5
) -> list[list[Label]]:
    """All streams [T, D] in one batch, in chunks of 0 .. max_frames frames each, padded with NaN."""
    states = fresh_states(network, len(streams))
    found: list[list[Label]] = [[] for _ in streams]
    position = [0] * len(streams)
    while any(at < len(stream) for at, stream in zip(position, streams, strict=True)):
        parts = [s[at : at + chance.randint(0, max_frames)] for at, s in zip(position, streams, strict=True)]
        encoded = torch.full((len(streams), max_frames + chance.randint(0, 2), streams[0].shape[1]), NAN)
        for row, part in enumerate(parts):
            encoded[row, : len(part)] = part
            position[row] += len(part)
        lengths = torch.tensor([len(part) for part in parts])
        hyps, states = search.decode(network.project_encoder(encoded), lengths, states)
        for row, labels in enumerate(found):
            labels += labels_of(hyps, row)
    return found


def random_streams(seed: int, lengths: tuple[int, ...], width: int = 16) -> list[torch.Tensor]:
    """Encoder outputs [T, width] that vary from frame to frame."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, width, generator=generator) for length in lengths]


class DecidedReference(GreedyReference):
    """The reference in float64; asserts that the best two scores differ by more than float32 rounding."""

    def __init__(self, checkpoint: Checkpoint, max_symbols: int | None = None):
        tensors = checkpoint.tensors("predictor.", "joint.", "blank.", "acoustic.")
        config = checkpoint.config.transducer
        doubled = {name: tensor.double() for name, tensor in tensors.items()}
        super().__init__(config, doubled, max_symbols, config.ilm_greedy)

    def joint(self, encoded_frame: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        return super().joint(encoded_frame.double(), prediction)

    def ranking(self, logits: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        ranking = super().ranking(logits, prediction)
        for choice in (ranking, logits[len(ranking) :]):
            best = choice.topk(min(2, len(choice))).values
            assert len(best) < 2 or best[0] - best[1] > 2 * SCORE_ERROR, "take another seed"
        return ranking


def decode_by_reference(
    checkpoint: Checkpoint, streams: list[torch.Tensor], max_symbols: int | None = None
) -> list[list[Label]]:
    """Each stream alone, frame by frame."""
    reference = DecidedReference(checkpoint, max_symbols)
    return [reference.decode(stream) for stream in streams]


def assert_same_labels(found: list[list[Label]], expected: list[list[Label]]) -> None:
    """Asserts equal labels, times and durations, and log-probabilities within `SCORE_ERROR`."""
    for found_row, expected_row in zip(found, expected, strict=True):
        assert [label[:3] for label in found_row] == [label[:3] for label in expected_row]
        scores = ([label.score for label in row] for row in (found_row, expected_row))
        torch.testing.assert_close(*map(torch.tensor, scores), atol=SCORE_ERROR, rtol=0)
