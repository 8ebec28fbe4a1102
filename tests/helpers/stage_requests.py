"""Requests of one row each for the stages, as a batch of tickets or rows; an answer or an error for each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import END, FINALIZE, START, Column, Ticket, encoder_frame_counts
from penstock.pipeline.stages.audio_rows import AudioRequest, rows_of
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from tests.helpers.streaming import MelChunks


class FeatureReply(NamedTuple):
    """A row of a ticket, its chunks [C, N, F] and the options of a start."""

    row: np.ndarray
    mel: torch.Tensor
    options: ResolvedOptions | None

    @property
    def lease(self) -> Lease:
        return Lease(int(self.row[Column.SLOT]), int(self.row[Column.GENERATION]))

    @property
    def number(self) -> int:
        return int(self.row[Column.NUMBER])


@dataclass(frozen=True)
class EncoderRequest:
    """The chunks of one request."""

    lease: Lease
    chunks: MelChunks
    is_start: bool
    finalize: bool = False

    def row(self, number: int) -> np.ndarray:
        """[8] int64, of a ticket."""
        mel, last_valid, covered = self.chunks
        frames = encoder_frame_counts(np.array([len(mel)]), np.array([last_valid]), mel.shape[1], 8)
        flags = START * self.is_start + FINALIZE * self.finalize
        return np.array([*self.lease, number, flags, len(mel), last_valid, covered, *frames])


@dataclass(frozen=True)
class DecoderRequest:
    """The frames [T, D] of one request."""

    lease: Lease
    encoded: torch.Tensor
    covered_samples: int
    is_start: bool
    is_end: bool
    options: ResolvedOptions | None = None
    finalize: bool = False

    def row(self, number: int) -> np.ndarray:
        """[8] int64, of a ticket."""
        flags = START * self.is_start + END * self.is_end + FINALIZE * self.finalize
        return np.array([*self.lease, number, flags, 0, 0, self.covered_samples, len(self.encoded)])


def admit(stage: FeatureStage, requests: Sequence[AudioRequest]) -> list[FeatureReply | StreamError]:
    """The features stage's replies."""
    (found,) = stage.process_rows([rows_of(requests, is_batched=True)])
    assert not isinstance(found, StreamError)
    parts = found.mel.split(found.rows[:, Column.CHUNKS].tolist())
    replies = [FeatureReply(found.rows[row], mel, found.options.get(row)) for row, mel in enumerate(parts)]
    return [found.errors.get(row, reply) for row, reply in enumerate(replies)]


def _rows(stage: EncoderStage | DecoderStage, requests: Sequence[EncoderRequest | DecoderRequest]) -> list[np.ndarray]:
    """A row [1, 8] for each request, with the number of requests that its stream has sent to the stage before."""
    guard, sent = stage._guard, Counter[Lease]()
    rows = []
    for request in requests:
        slot, generation = request.lease
        is_held = slot < len(guard._generations) and guard._generations[slot] == generation
        before = guard._requests[slot] if is_held else 0
        rows.append(request.row(before + sent[request.lease])[np.newaxis])
        sent[request.lease] += 1
    return rows


def encode(stage: EncoderStage, requests: Sequence[EncoderRequest]) -> list[torch.Tensor | StreamError]:
    """The frames [T, D] of each request."""
    tickets: list[Ticket | StreamError] = [Ticket(row) for row in _rows(stage, requests)]
    replies = stage.process_tickets(tickets, [request.chunks.mel for request in requests])
    return [reply if isinstance(reply, StreamError) else reply.errors.get(0, reply.encoded) for reply in replies]


def decode(stage: DecoderStage, requests: Sequence[DecoderRequest]) -> list[StreamResult | StreamError]:
    """The result of each request."""
    tickets: list[Ticket | StreamError] = [
        Ticket(row, options={} if request.options is None else {0: request.options})
        for row, request in zip(_rows(stage, requests), requests, strict=True)
    ]
    replies = stage.process_tickets(tickets, [request.encoded for request in requests])
    return [reply if isinstance(reply, StreamError) else reply.answers[0] for reply in replies]
