"""Drives the searches in tests: streams cut into chunks at random, side by side, with rubbish behind their ends."""

import random
from typing import Protocol

import torch

from penstock.checkpoint import Checkpoint
from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.greedy_state import GreedyRows, fresh_rows
from penstock.decoding.networks import TransducerNetwork
from tests.reference.greedy import GreedyReference, Label
from tests.streaming import NAN

DURATIONS = ((), (0, 1), (0, 1, 2, 3, 4), (0, 2, 4), (1, 0, 3), (2, 5), (1,), (0, 9))
"""RNN-T, and TDT with lists of every kind: dense, with gaps, unsorted, without 0, of one, with long jumps."""


class Search(Protocol):
    """What the searches have in common."""

    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, rows: GreedyRows
    ) -> tuple[BatchedHyps, GreedyRows]:
        """Decodes one chunk."""


def labels_of(hyps: BatchedHyps, row: int) -> list[Label]:
    """One row's labels."""
    count = int(hyps.lengths[row])
    columns = (hyps.labels, hyps.timestamps, hyps.durations, hyps.scores)
    return [Label(*values) for values in zip(*(column[row, :count].tolist() for column in columns), strict=True)]


def decode_whole(network: TransducerNetwork, search: Search, streams: list[torch.Tensor]) -> list[list[Label]]:
    """All streams [T, D] in one batch and one chunk."""
    lengths = torch.tensor([len(stream) for stream in streams])
    encoded = torch.nn.utils.rnn.pad_sequence(streams, batch_first=True, padding_value=NAN)
    hyps, _ = search.decode(network.project_encoder(encoded), lengths, fresh_rows(network, len(streams)))
    return [labels_of(hyps, row) for row in range(len(streams))]


def decode_in_chunks(
    network: TransducerNetwork, search: Search, streams: list[torch.Tensor], chance: random.Random, most_frames: int = 5
) -> list[list[Label]]:
    """All streams [T, D] side by side, each step with 0 .. most_frames frames of each and more rubbish behind."""
    rows = fresh_rows(network, len(streams))
    found: list[list[Label]] = [[] for _ in streams]
    position = [0] * len(streams)
    while any(at < len(stream) for at, stream in zip(position, streams, strict=True)):
        pieces = [s[at : at + chance.randint(0, most_frames)] for at, s in zip(position, streams, strict=True)]
        encoded = torch.full((len(streams), most_frames + chance.randint(0, 2), streams[0].shape[1]), NAN)
        for row, piece in enumerate(pieces):
            encoded[row, : len(piece)] = piece
            position[row] += len(piece)
        lengths = torch.tensor([len(piece) for piece in pieces])
        hyps, rows = search.decode(network.project_encoder(encoded), lengths, rows)
        for row, labels in enumerate(found):
            labels += labels_of(hyps, row)
    return found


def random_streams(seed: int, lengths: tuple[int, ...], width: int = 16) -> list[torch.Tensor]:
    """Encoder outputs [T, width] that vary from frame to frame."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, width, generator=generator) for length in lengths]


def decode_by_reference(
    checkpoint: Checkpoint, streams: list[torch.Tensor], max_symbols: int | None = None
) -> list[list[Label]]:
    """Each stream alone, frame by frame."""
    reference = GreedyReference(checkpoint.config.transducer, checkpoint.tensors("predictor.", "joint."), max_symbols)
    return [reference.decode(stream) for stream in streams]


def assert_same_labels(found: list[list[Label]], expected: list[list[Label]]) -> None:
    """The same labels, times and durations; log-probabilities but for rounding."""
    for found_row, expected_row in zip(found, expected, strict=True):
        assert [label[:3] for label in found_row] == [label[:3] for label in expected_row]
        scores = ([label.score for label in row] for row in (found_row, expected_row))
        torch.testing.assert_close(*map(torch.tensor, scores), atol=1e-4, rtol=0)
