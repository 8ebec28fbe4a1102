"""Second stage: log-mel chunks in, encoder frames out; one encoder step for all streams that have a chunk.

Independent of words and searches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.host_copy import copy_to_device
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import MelChunks
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.rounds import process_in_rounds
from penstock.pipeline.slots.guard import STEP_ERRORS, SlotGuard, admit_all
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import FINALIZE, START, Column, Ticket
from penstock.runtime import check_device_works, send_to_device


@dataclass(frozen=True)
class EncoderRequest:
    """The chunks that one request of one stream completed, zero or more."""

    lease: Lease
    chunks: MelChunks
    is_start: bool
    finalize: bool = False
    """A segment ends with this request and the stream continues: its encoder state starts afresh."""
    number: int | None = None
    """The stream's requests before this one, where they are counted."""


class EncodedRows(NamedTuple):
    """The encoder frames of one Triton request."""

    encoded: torch.Tensor
    """[T, D] float32, the frames of all rows, one row after another; zeros for a rejected row."""
    errors: dict[int, StreamError]
    """By row rejected here; the decoder finds them in the ledger."""


def warm_up_batches(largest: int, device: torch.device) -> list[int]:
    """The batch sizes that a step runs with before the first request, the largest first."""
    if device.type == "cuda":
        return list(range(largest, 0, -1))
    return sorted({largest, 1}, reverse=True)


class EncoderStage:
    """Runs the encoder for a batch of streams with any number of chunks each."""

    def __init__(
        self, checkpoint: Checkpoint, context: AttentionContext, slots: int, ledger: SlotLedger, device: str = "cpu"
    ):
        self._encoder = StreamingEncoder(checkpoint, context, slots, device)
        config = checkpoint.config.encoder
        self._chunk_shape = [config.subsampling_factor * context.chunk_encoder_frames, config.mel_bins]
        self._device = torch.device(device)
        self._slots = slots
        self._guard = SlotGuard("encoder", slots, ledger)

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Runs a step of `streams` streams, so that its memory is allocated before the first request.

        Also a step of one stream, for which OpenVINO has a model of its own; on a GPU one of every smaller batch,
        because cuDNN plans a convolution when it first sees a batch size.
        """
        for batch in warm_up_batches(min(streams, self._slots), self._device):
            slots = torch.arange(batch, device=self._device)
            mel = torch.zeros(batch, *self._chunk_shape, device=self._device)
            self._encoder.open(slots)  # reset again when a stream gets the slot
            self._encoder.step(slots, mel, torch.full_like(slots, self._chunk_shape[0]))

    @torch.inference_mode()
    def process(self, requests: list[EncoderRequest]) -> list[torch.Tensor | StreamError]:
        """Returns for each request (all of different streams) its encoder frames [T, D], T >= 0, or an error.

        Raises DeviceLostError if no later step can succeed.
        """
        answers: list = admit_all(requests, self._admit)
        admitted = [i for i, answer in enumerate(answers) if answer is None]
        try:
            self._open([requests[i].lease.slot for i in admitted if requests[i].is_start])
            encoded: Sequence[torch.Tensor | StreamError] = self._encode([requests[i] for i in admitted])
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            encoded = [self._guard.reject(requests[i].lease, f"the encoder failed: {error}") for i in admitted]
        for i, frames in zip(admitted, encoded, strict=True):
            answers[i] = frames
        return answers

    def process_tickets(
        self, tickets: list[Ticket | StreamError], mels: list[torch.Tensor]
    ) -> list[EncodedRows | StreamError]:
        """Returns for each Triton request of a batch its frames, or why it is rejected as a whole.

        mels: of each request [C, N, F], the chunks of all rows.
        """
        answers: list[EncodedRows | StreamError] = []
        requests: list[EncoderRequest] = []
        for ticket, mel in zip(tickets, mels, strict=True):
            if not isinstance(ticket, StreamError) and len(mel) != ticket.rows[:, Column.CHUNKS].sum():
                ticket = StreamError(ErrorCode.REQUEST_INVALID, f"{len(mel)} chunks are not those of the ticket")
            if isinstance(ticket, StreamError):
                answers.append(ticket)
                continue
            answers.append(EncodedRows(mel, {}))
            start = 0
            for slot, generation, number, flags, chunks, last_valid, covered, _ in ticket.rows.tolist():
                if slot >= 0:
                    row = MelChunks(mel[start : start + chunks], last_valid, covered)
                    lease = Lease(slot, generation)
                    requests.append(EncoderRequest(lease, row, bool(flags & START), bool(flags & FINALIZE), number))
                start += chunks
        encoded = iter(process_in_rounds(self.process, requests, lambda request: request.lease.slot))
        for i, (ticket, answer) in enumerate(zip(tickets, answers, strict=True)):
            if isinstance(answer, StreamError):
                continue
            assert isinstance(ticket, Ticket)
            parts, errors = [self._no_frames(0)], {}
            for row in np.flatnonzero(ticket.rows[:, Column.SLOT] >= 0).tolist():
                frames = next(encoded)
                if isinstance(frames, StreamError):
                    errors[row] = frames
                    frames = self._no_frames(int(ticket.rows[row, Column.FRAMES]))
                parts.append(frames)
            answers[i] = EncodedRows(torch.cat(parts) if len(parts) != 2 else parts[1], errors)
        return answers

    def _no_frames(self, count: int) -> torch.Tensor:
        return torch.zeros(count, self._encoder.config.d_model, device=self._device)

    def _admit(self, request: EncoderRequest) -> StreamError | None:
        found, expected = list(request.chunks.mel.shape[1:]), self._chunk_shape
        if found != expected:  # a wrong shape would fail the whole batch
            return StreamError(ErrorCode.REQUEST_INVALID, f"chunks are {found} each, expected {expected}")
        return self._guard.admit(request.lease, request.is_start, request.number)

    def _open(self, slots: list[int]) -> None:
        """Resets the encoder state of `slots` for new streams or segments."""
        if slots:
            self._encoder.open(copy_to_device(slots, torch.int64, self._device))

    def _encode(self, requests: list[EncoderRequest]) -> list[torch.Tensor]:
        parts: list[list[torch.Tensor]] = [[] for _ in requests]
        counts = [r.chunks.mel.shape[0] for r in requests]
        steps = max(counts, default=0)
        for step in range(steps):
            rows = [i for i, count in enumerate(counts) if step < count]
            for i, frames in zip(rows, self._step([requests[i] for i in rows], step), strict=True):
                # A view of the step's output, which the encoder may overwrite in its next step.
                parts[i].append(frames.clone() if steps > 1 else frames)
        self._open([request.lease.slot for request in requests if request.finalize])
        empty = self._no_frames(0)
        return [torch.cat(part) if len(part) > 1 else part[0] if part else empty for part in parts]

    def _step(self, requests: list[EncoderRequest], number: int) -> list[torch.Tensor]:
        """Encodes chunk `number` of each request; returns the valid frames [t, D] of each."""
        mel = send_to_device(torch.stack([r.chunks.mel[number] for r in requests]), self._device)
        whole = mel.shape[1]
        valid = [r.chunks.last_valid_mel_frames if number == len(r.chunks.mel) - 1 else whole for r in requests]
        slots = copy_to_device([r.lease.slot for r in requests], torch.int64, self._device)
        lengths = copy_to_device(valid, torch.int64, self._device)
        frames = self._encoder.step(slots, mel, lengths).frames.float()
        # Valid encoder frames, computed on the host without synchronizing: ceil(valid / factor).
        factor = self._encoder.config.subsampling_factor
        return [row[: -(-count // factor)] for row, count in zip(frames, valid, strict=True)]
