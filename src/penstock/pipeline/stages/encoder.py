"""Second stage: log-mel chunks in, encoder frames out; one encoder step for all streams that have a chunk.

Independent of words and searches.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_host
from penstock.encoder.encoder import StreamingEncoder, first_batches
from penstock.encoder.precision import FLOAT32, open_encoder
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.ranks import sums_before
from penstock.graphs.select import AUTO, select_step_driver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.slots.guard import STEP_ERRORS, SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.ticket import NO_ROW, OPEN, START, Column, Ticket
from penstock.pipeline.stages.requests import answer_requests
from penstock.runtime import check_device, check_device_works, send_to_device


class EncodedRows(NamedTuple):
    """The encoder frames of one Triton request."""

    encoded: torch.Tensor
    """[T, D] float32, the frames of all rows, one row after another; zeros for a rejected row. Those that are not
    copied to the host may be overwritten by the next call."""
    errors: dict[int, StreamError]
    """By row rejected here; the decoder finds them in the ledger."""
    rows: np.ndarray | None = None
    """[R, 8] int64, of the decoder's ticket; None: those of the request's."""


class EncodingStage(ABC):
    """Encodes the log-mel of a batch of requests."""

    _encoder: StreamingEncoder | WindowEncoder
    _chunk_shape: list[int]
    """[N, F] of a chunk, which has one frame in an offline model."""

    @property
    def products(self) -> dict[str, int]:
        """The encoder's products by kind, as `Int8Choice.products`; none in int8 in another precision."""
        return {"int8": 0} if self._encoder.int8 is None else self._encoder.int8.products

    def process_tickets(
        self, tickets: list[Ticket | StreamError], mels: list[torch.Tensor], to_host: bool = True
    ) -> list[EncodedRows | StreamError]:
        """Returns for each request of a batch its frames, or why it is rejected as a whole.

        mels: of each request [C, N, F], the chunks of all rows. Rows of a stream are processed in order. to_host: False
        leaves the frames on the device. Raises DeviceLostError if no later step can succeed.
        """
        return answer_requests(tickets, mels, self._problem_with, partial(self._process, to_host=to_host))

    def _problem_with(self, ticket: Ticket, mel: torch.Tensor) -> StreamError | None:
        found, expected = list(mel.shape[1:]), self._chunk_shape
        if found != expected:  # a wrong shape would fail the whole batch
            return StreamError(ErrorCode.REQUEST_INVALID, f"chunks are {found} each, expected {expected}")
        if len(mel) != ticket.rows[:, Column.CHUNKS].sum():
            return StreamError(ErrorCode.REQUEST_INVALID, f"{len(mel)} chunks are not those of the ticket")
        return None

    @abstractmethod
    def _process(self, good: list[tuple[Ticket, torch.Tensor]], to_host: bool) -> list[EncodedRows]:
        """Encodes the requests that can be used."""


class EncoderStage(EncodingStage):
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
        kernels: str = AUTO,
    ):
        """cuda_graphs, kernels: as in `DecodingConfig`; the step has no loops, so there are graphs or none.

        precision: of `PRECISIONS`. Frames are float32 in any case.
        """
        check_device(device)
        driver = select_step_driver(cuda_graphs, device)
        self._encoder: StreamingEncoder = open_encoder(checkpoint, context, slots, device, precision, driver, kernels)
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

    def _process(self, good: list[tuple[Ticket, torch.Tensor]], to_host: bool) -> list[EncodedRows]:
        if not good:
            return []
        rows = good[0][0].rows if len(good) == 1 else np.concatenate([ticket.rows for ticket, _ in good])
        forwarded = (rows[:, Column.SLOT] != NO_ROW[Column.SLOT]).nonzero()[0]
        encoded, errors = self._encode(rows[forwarded], [mel for _, mel in good], to_host)
        row_errors = {int(forwarded[row]): error for row, error in errors.items()}
        return self._split([ticket.rows for ticket, _ in good], encoded, row_errors)

    @staticmethod
    def _split(requests: list[np.ndarray], encoded: torch.Tensor, errors: dict[int, StreamError]) -> list[EncodedRows]:
        """Deals frames [T, D] and errors by row to the requests that they belong to, with rows [R, 8] each."""
        if len(requests) == 1:
            return [EncodedRows(encoded, errors)]
        parts = encoded.split([int(rows[:, Column.FRAMES].sum()) for rows in requests])
        answers, start = [], 0
        for rows, part in zip(requests, parts, strict=True):
            end = start + len(rows)
            own = {row - start: error for row, error in errors.items() if start <= row < end} if errors else {}
            answers.append(EncodedRows(part, own))
            start = end
        return answers

    @torch.inference_mode()
    def _encode(
        self, rows: np.ndarray, mels: list[torch.Tensor], to_host: bool
    ) -> tuple[torch.Tensor, dict[int, StreamError]]:
        """Returns the frames [T, D] of rows [R, 8] and, by row, why some are rejected; their frames are zeros.

        mels: [C, N, F] each, the chunks of all rows together. to_host: copies the frames to the host, all at once.
        """
        slots, generations, numbers, flags, chunks, last_valid = rows.T[: Column.LAST_VALID + 1]
        errors = self._guard.admit(slots, generations, numbers, flags)
        is_admitted = np.ones(len(rows), bool)
        if errors:
            is_admitted[list(errors)] = False
        # By chunk: its row, and the mel frames that hold audio, fewer in the last chunk of a segment.
        owner = np.arange(len(rows)).repeat(chunks)
        last = chunks.nonzero()[0]
        valid = np.full(len(owner), self._chunk_shape[0])
        valid[chunks.cumsum()[last] - 1] = last_valid[last]
        is_open = np.zeros(len(owner), bool)
        is_open[chunks.cumsum()[last] - 1] = flags[last] & OPEN > 0
        frames: torch.Tensor | None = None
        mel: torch.Tensor | None = None
        try:
            for step in self._steps(slots, chunks, flags, is_admitted, owner):
                if mel is None and len(step.chunks):
                    # Once for all steps, and never where no row completes a chunk.
                    mel = send_to_device(mels[0] if len(mels) == 1 else torch.cat(mels), self._device)
                for places, part in self._run(step, mel, slots[owner], valid, is_open):
                    # One part has every chunk, in order: no copy.
                    if len(places) == len(owner):
                        frames = part
                        continue
                    if frames is None:
                        frames = self._no_frames(len(owner))
                    frames.index_copy_(0, places, part)
            if frames is None:
                frames = self._no_frames(len(owner))
            if to_host:  # waits for the device, which reports errors of the steps here
                frames = copy_to_host(frames)
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            for row in np.flatnonzero(is_admitted).tolist():
                why = f"the encoder failed: {error}"
                errors[row] = self._guard.reject(int(slots[row]), int(generations[row]), why)
            # Zeros, since the decoder splits the frames by the counts in the tickets.
            frames = self._no_frames(len(owner), "cpu" if to_host else None)
        # Every chunk is full: no copy.
        if rows[:, Column.FRAMES].sum() == len(owner) * self._chunk_frames:
            return frames.flatten(0, 1), errors
        counts = -(-valid // self._encoder.config.subsampling_factor)
        is_valid = np.arange(self._chunk_frames) < counts[:, np.newaxis]
        kept = send_to_device(torch.from_numpy(np.flatnonzero(is_valid)), frames.device)
        return frames.flatten(0, 1).index_select(0, kept), errors

    def _steps(
        self, slots: np.ndarray, chunks: np.ndarray, flags: np.ndarray, is_admitted: np.ndarray, owner: np.ndarray
    ) -> Iterator["_Step"]:
        """The steps of a batch: step k has the k-th chunk of each stream, after the streams that begin there."""
        # 1) chunks of the stream in this batch before each row
        before = sums_before(slots, chunks)
        # 2) where streams begin
        starts = ((flags & START > 0) & is_admitted).nonzero()[0]
        begin_slots, begin_steps = slots[starts], before[starts]
        # 3) the step of each chunk
        step_of = np.arange(len(owner)) + (before + chunks - chunks.cumsum())[owner]
        step_of[~is_admitted[owner]] = -1
        for step in range(int(max(step_of.max(initial=-1), begin_steps.max(initial=-1))) + 1):
            yield _Step(begin_slots[begin_steps == step], (step_of == step).nonzero()[0])

    def _run(
        self, step: "_Step", mel: torch.Tensor | None, slots: np.ndarray, valid: np.ndarray, is_open: np.ndarray
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Runs a step in parts of at most `max_batch` streams; yields chunks [B] int64 and their frames [B, T, D].

        mel: [C, N, F], all chunks, where there are any; slots, valid: [C] int64, of each chunk the slot and the mel
        frames that hold audio; is_open: [C] bool, after which the stream's state is as before.
        """
        # Not before the batch: the slot's last stream may have had a chunk in an earlier step of it.
        if len(step.begins):
            self._encoder.open(send_to_device(torch.from_numpy(step.begins), self._device))
        largest = self._encoder.max_batch
        for start in range(0, len(step.chunks), largest):
            chunks = step.chunks[start : start + largest]
            # One copy to the device for all three
            numbers = torch.from_numpy(np.array([slots[chunks], valid[chunks], chunks]))
            own, counts, places = send_to_device(numbers, self._device).unbind()
            assert mel is not None
            chosen = mel if len(chunks) == len(mel) else mel.index_select(0, places)
            state, opened = self._encoder.state, slots[chunks[is_open[chunks]]]
            # An open chunk comes again with more audio: its stream goes on from the state before it.
            kept = state.copy(send_to_device(torch.from_numpy(opened), self._device)) if len(opened) else None
            # The caller copies the frames before the next part runs: a captured step writes to the same memory again.
            yield places, self._encoder.step(own, chosen, counts).frames.float()
            if kept is not None:
                state.put_back(kept)

    def _no_frames(self, chunks: int, device: str | None = None) -> torch.Tensor:
        """Zeros [C, T, D], by default on the stage's device."""
        return torch.zeros(chunks, self._chunk_frames, self._encoder.config.d_model, device=device or self._device)


class _Step(NamedTuple):
    """One chunk each of different streams."""

    begins: np.ndarray
    """[n] int64, slots in which a stream begins before them; one may occur twice."""
    chunks: np.ndarray
    """[B] int64, which chunks of the batch."""
