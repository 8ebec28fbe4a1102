"""Second stage: chunks of log-mel in, encoder frames out; one encoder step for all streams that have a chunk."""

from dataclasses import dataclass

import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import StreamError, StreamErrorKind
from penstock.features import MelChunks
from penstock.slot_ledger import SlotLedger
from penstock.stages.slot_guard import STEP_ERRORS, SlotGuard, admit_all
from penstock.streams import Lease


@dataclass(frozen=True)
class EncoderRequest:
    """The chunks that one request of one stream completed; maybe none."""

    lease: Lease
    chunks: MelChunks
    is_start: bool
    ends_segment: bool = False
    """The stream goes on behind this request as if it began there."""


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
    def rehearse(self, streams: int) -> None:
        """One step of so many streams, before there are any: what it needs of memory is then taken once and for all."""
        slots = torch.arange(min(streams, self._slots), device=self._device)
        mel = torch.zeros(len(slots), *self._chunk_shape, device=self._device)
        self._encoder.open(slots)  # as each stream does that gets one of them
        self._encoder.step(slots, mel, torch.full_like(slots, self._chunk_shape[0]))

    @torch.inference_mode()
    def process(self, requests: list[EncoderRequest]) -> list[torch.Tensor | StreamError]:
        """Answers each request (all of different streams) with its encoder frames [T, D], T >= 0, or with an error."""
        answers: list = admit_all(requests, self._admit)
        admitted = [i for i, answer in enumerate(answers) if answer is None]
        try:
            self._open([requests[i].lease.slot for i in admitted if requests[i].is_start])
            encoded = self._encode([requests[i] for i in admitted])
        except STEP_ERRORS as error:  # these streams' states can no longer be trusted
            encoded = [self._guard.refuse(requests[i].lease, f"the encoder failed: {error}") for i in admitted]
        for i, frames in zip(admitted, encoded, strict=True):
            answers[i] = frames
        return answers

    def _admit(self, request: EncoderRequest) -> StreamError | None:
        found, expected = list(request.chunks.mel.shape[1:]), self._chunk_shape
        if found != expected:  # would cost the whole batch
            return StreamError(StreamErrorKind.INVALID_ARGUMENT, f"chunks are {found} each, expected {expected}")
        return self._guard.admit(request.lease, request.is_start)

    def _open(self, slots: list[int]) -> None:
        """Makes `slots` streams, or segments, that have heard nothing."""
        if slots:
            self._encoder.open(torch.tensor(slots, device=self._device))

    def _encode(self, requests: list[EncoderRequest]) -> list[torch.Tensor]:
        parts: list[list[torch.Tensor]] = [[] for _ in requests]
        counts = [r.chunks.mel.shape[0] for r in requests]
        for turn in range(max(counts, default=0)):
            rows = [i for i, count in enumerate(counts) if turn < count]
            for i, frames in zip(rows, self._step([requests[i] for i in rows], turn), strict=True):
                parts[i].append(frames)
        self._open([request.lease.slot for request in requests if request.ends_segment])
        empty = torch.zeros(0, self._encoder.config.d_model, device=self._device)
        return [torch.cat(part) if len(part) > 1 else part[0] if part else empty for part in parts]

    def _step(self, requests: list[EncoderRequest], turn: int) -> list[torch.Tensor]:
        """One chunk of each request: its valid frames [t, D]."""
        mel = torch.stack([r.chunks.mel[turn] for r in requests]).to(self._device)
        whole = mel.shape[1]
        valid = [r.chunks.last_valid_mel_frames if turn == len(r.chunks.mel) - 1 else whole for r in requests]
        slots = torch.tensor([r.lease.slot for r in requests], device=self._device)
        frames = self._encoder.step(slots, mel, torch.tensor(valid, device=self._device)).frames.float()
        # Known on the host without asking the device: ceil(valid / factor).
        factor = self._encoder.config.subsampling_factor
        return [row[: -(-count // factor)] for row, count in zip(frames, valid, strict=True)]
