"""Second stage: log-mel chunks in, encoder frames out; one encoder step for all streams that have a chunk.

Independent of words and searches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.host_copy import copy_to_host
from penstock.encoder.encoder import first_batches
from penstock.encoder.precision import FLOAT32, open_encoder
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import MelChunks
from penstock.graphs.select import AUTO, select_step_driver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.slots.guard import NOT_COUNTED, STEP_ERRORS, SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import FINALIZE, NO_ROW, START, Column, Ticket, encoder_frame_counts
from penstock.runtime import check_device, check_device_works, send_to_device


@dataclass(frozen=True)
class EncoderRequest:
    """The chunks that one request of one stream completed, zero or more."""

    lease: Lease
    chunks: MelChunks
    is_start: bool
    finalize: bool = False
    """A segment ends with this request and the stream continues: its encoder state starts afresh."""
    number: int = NOT_COUNTED
    """The stream's requests before this one."""

    def row(self) -> tuple[int, ...]:
        """Its row of a ticket, without `FRAMES`."""
        flags = START * self.is_start + FINALIZE * self.finalize
        mel, last_valid, covered = self.chunks
        return (*self.lease, self.number, flags, len(mel), last_valid, covered, 0)


class EncodedRows(NamedTuple):
    """The encoder frames of one Triton request."""

    encoded: torch.Tensor
    """[T, D] float32 on the host, the frames of all rows, one row after another; zeros for a rejected row."""
    errors: dict[int, StreamError]
    """By row rejected here; the decoder finds them in the ledger."""


class EncoderStage:
    """Runs the encoder for a batch of streams with any number of chunks each."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext,
        slots: int,
        ledger: SlotLedger,
        device: str = "cpu",
        cuda_graphs: str = AUTO,
        precision: str = FLOAT32,
    ):
        """cuda_graphs: as `DecodingConfig.cuda_graphs`; the step has no loops, so there are graphs or none.

        precision: of `PRECISIONS`. Frames are float32 in any case.
        """
        check_device(device)
        driver = select_step_driver(cuda_graphs, device)
        self._encoder = open_encoder(checkpoint, context, slots, device, precision, driver)
        config = checkpoint.config.encoder
        self._chunk_shape = [config.subsampling_factor * context.chunk_encoder_frames, config.mel_bins]
        self._device = torch.device(device)
        self._chunk_frames = context.chunk_encoder_frames
        self._slots = slots
        self._guard = SlotGuard("encoder", slots, ledger)

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Runs a step of `streams` streams and of what other numbers need, before the first request."""
        for batch in first_batches(min(streams, self._slots, self._encoder.max_batch), self._encoder.engine):
            slots = torch.arange(batch, device=self._device)
            mel = torch.zeros(batch, *self._chunk_shape, device=self._device)
            self._encoder.open(slots)  # reset again when a stream gets the slot
            self._encoder.step(slots, mel, torch.full_like(slots, self._chunk_shape[0]))

    def process(self, requests: list[EncoderRequest]) -> list[torch.Tensor | StreamError]:
        """Returns for each request its encoder frames [T, D], T >= 0, or an error; requests of a stream in order.

        Raises DeviceLostError if no later step can succeed.
        """
        answers: list[torch.Tensor | StreamError | None] = [self._shape_problem(r.chunks.mel) for r in requests]
        good = [request for request, problem in zip(requests, answers, strict=True) if problem is None]
        rows = np.array([request.row() for request in good], np.int64).reshape(len(good), len(Column))
        rows[:, Column.FRAMES] = encoder_frame_counts(
            rows[:, Column.CHUNKS],
            rows[:, Column.LAST_VALID],
            self._chunk_shape[0],
            self._encoder.config.subsampling_factor,
        )
        encoded, errors = self._encode(rows, [request.chunks.mel for request in good])
        parts = zip(encoded.split(rows[:, Column.FRAMES].tolist()), range(len(good)), strict=True) if good else iter(())
        found = iter([errors.get(row, frames) for frames, row in parts])
        return [next(found) if problem is None else problem for problem in answers]

    def process_tickets(
        self, tickets: list[Ticket | StreamError], mels: list[torch.Tensor]
    ) -> list[EncodedRows | StreamError]:
        """Returns for each Triton request of a batch its frames, or why it is rejected as a whole.

        mels: of each request [C, N, F], the chunks of all rows. Rows of a stream are processed in order. Raises
        DeviceLostError if no later step can succeed.
        """
        answers: list[EncodedRows | StreamError | None] = []
        good: list[tuple[np.ndarray, torch.Tensor]] = []
        for ticket, mel in zip(tickets, mels, strict=True):
            if isinstance(ticket, StreamError):
                answers.append(ticket)
                continue
            problem = self._shape_problem(mel)
            if problem is None and len(mel) != ticket.rows[:, Column.CHUNKS].sum():
                problem = StreamError(ErrorCode.REQUEST_INVALID, f"{len(mel)} chunks are not those of the ticket")
            answers.append(problem)
            if problem is None:
                good.append((ticket.rows, mel))
        rows = np.concatenate([np.zeros((0, len(Column)), np.int64), *(rows for rows, _ in good)])
        forwarded = np.flatnonzero(rows[:, Column.SLOT] != NO_ROW[Column.SLOT])
        encoded, errors = self._encode(rows[forwarded], [mel for _, mel in good], to_host=True)
        row_errors = {int(forwarded[row]): error for row, error in errors.items()}
        found = iter(self._split(good, encoded, row_errors))
        return [next(found) if answer is None else answer for answer in answers]

    @staticmethod
    def _split(
        good: list[tuple[np.ndarray, torch.Tensor]], encoded: torch.Tensor, errors: dict[int, StreamError]
    ) -> list[EncodedRows]:
        """Deals frames [T, D] and errors by row to the requests that they belong to."""
        parts = encoded.split([int(rows[:, Column.FRAMES].sum()) for rows, _ in good])
        answers, start = [], 0
        for (rows, _), part in zip(good, parts, strict=True):
            end = start + len(rows)
            own = {row - start: error for row, error in errors.items() if start <= row < end} if errors else {}
            answers.append(EncodedRows(part, own))
            start = end
        return answers

    def _shape_problem(self, mel: torch.Tensor) -> StreamError | None:
        found, expected = list(mel.shape[1:]), self._chunk_shape
        if found != expected:  # a wrong shape would fail the whole batch
            return StreamError(ErrorCode.REQUEST_INVALID, f"chunks are {found} each, expected {expected}")
        return None

    @torch.inference_mode()
    def _encode(
        self, rows: np.ndarray, mels: list[torch.Tensor], to_host: bool = False
    ) -> tuple[torch.Tensor, dict[int, StreamError]]:
        """Returns the frames [T, D] of rows [R, 8] and, by row, why some are rejected; their frames are zeros.

        mels: [C, N, F] each, the chunks of all rows together. to_host: copies the frames to the host, all at once.
        """
        slots, generations, numbers, flags, chunks, last_valid = rows.T[: Column.LAST_VALID + 1]
        errors = self._guard.admit(slots, generations, numbers, flags)
        is_admitted = np.ones(len(rows), bool)
        is_admitted[list(errors)] = False
        # Of each chunk: its row, and the mel frames that hold audio, fewer in the last chunk of a segment.
        owner = np.repeat(np.arange(len(rows)), chunks)
        valid = np.full(len(owner), self._chunk_shape[0])
        valid[(chunks.cumsum() - 1)[chunks > 0]] = last_valid[chunks > 0]
        frames = torch.zeros(len(owner), self._chunk_frames, self._encoder.config.d_model, device=self._device)
        mel: torch.Tensor | None = None
        try:
            for step in self._steps(slots, chunks, flags, is_admitted, owner):
                if mel is None and len(step.chunks):
                    mel = send_to_device(mels[0] if len(mels) == 1 else torch.cat(mels), self._device)
                self._run(step, frames, mel, slots[owner], valid)
            if to_host:  # waits for the device, which reports errors of the steps here
                frames = copy_to_host(frames)
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            for row in np.flatnonzero(is_admitted).tolist():
                why = f"the encoder failed: {error}"
                errors[row] = self._guard.reject(int(slots[row]), int(generations[row]), why)
            frames = torch.zeros_like(frames, device="cpu" if to_host else None)
        counts = -(-valid // self._encoder.config.subsampling_factor)
        if (counts == self._chunk_frames).all():
            return frames.flatten(0, 1), errors
        is_valid = np.arange(self._chunk_frames) < counts[:, np.newaxis]
        kept = send_to_device(torch.from_numpy(np.flatnonzero(is_valid)), frames.device)
        return frames.flatten(0, 1).index_select(0, kept), errors

    def _steps(
        self, slots: np.ndarray, chunks: np.ndarray, flags: np.ndarray, is_admitted: np.ndarray, owner: np.ndarray
    ) -> Iterator["_Step"]:
        """The steps of a batch: step k has the k-th chunk of each stream, after the segments that begin there."""
        # 1) chunks of the stream in this batch before each row
        order = np.argsort(slots, kind="stable")
        before_all = chunks[order].cumsum() - chunks[order]
        is_first = np.ones(len(slots), bool)
        is_first[1:] = slots[order][1:] != slots[order][:-1]
        before = np.empty_like(chunks)
        before[order] = before_all - np.maximum.accumulate(np.where(is_first, before_all, 0)) if len(slots) else 0
        # 2) where streams and segments begin: a start before the row's chunks, finalize after them
        starts, ends = ((flags & flag > 0) & is_admitted for flag in (START, FINALIZE))
        begin_slots = np.concatenate([slots[starts], slots[ends]])
        begin_steps = np.concatenate([before[starts], (before + chunks)[ends]])
        # 3) the step of each chunk
        first_chunk = chunks.cumsum() - chunks
        step_of = before[owner] + np.arange(len(owner)) - first_chunk[owner]
        step_of[~is_admitted[owner]] = -1
        for step in range(int(max(step_of.max(initial=-1), begin_steps.max(initial=-1))) + 1):
            yield _Step(begin_slots[begin_steps == step], np.flatnonzero(step_of == step))

    def _run(
        self, step: "_Step", frames: torch.Tensor, mel: torch.Tensor | None, slots: np.ndarray, valid: np.ndarray
    ) -> None:
        """Runs a step in parts of at most `max_batch` streams and writes the frames [C, T, D] of its chunks.

        mel: [C, N, F], all chunks, where there are any; slots, valid: [C] int64, of each chunk the slot and the mel
        frames that hold audio.
        """
        if len(step.begins):
            self._encoder.open(send_to_device(torch.from_numpy(step.begins), self._device))
        largest = self._encoder.max_batch
        for start in range(0, len(step.chunks), largest):
            chunks = step.chunks[start : start + largest]
            # One copy to the device for all three
            numbers = send_to_device(torch.from_numpy(np.stack([slots[chunks], valid[chunks], chunks])), self._device)
            assert mel is not None
            chosen = mel if len(chunks) == len(mel) else mel.index_select(0, numbers[2])
            encoded = self._encoder.step(numbers[0], chosen, numbers[1]).frames.float()
            frames.index_copy_(0, numbers[2], encoded)


class _Step(NamedTuple):
    """One chunk each of different streams."""

    begins: np.ndarray
    """[n] int64, slots in which a stream or segment begins before them; one may occur twice."""
    chunks: np.ndarray
    """[B] int64, which chunks of the batch."""
