"""First stage: owns the stream table; samples in, whole chunks of log-mel out."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext, ModelConfig
from penstock.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.device import prepare_device
from penstock.errors import StreamError, StreamErrorKind
from penstock.features import ChunkGeometry, FeatureExtractor, LogMel, MelChunks
from penstock.fusion.phrase_tokens import tokenize_phrases
from penstock.stages.slot_guard import STEP_ERRORS
from penstock.stream_options import FINALIZE, parse_stream_options
from penstock.streams import Lease, StreamTable
from penstock.tokenizer import Tokenizer

MAX_REQUEST_S = 30.0
MAX_MAGNITUDE = 32768.0


@dataclass(frozen=True)
class AudioRequest:
    """Some samples of one stream."""

    stream_id: Hashable
    samples: np.ndarray
    """[n] float32 at the checkpoint's rate, mono, full scale 1; n may be 0."""
    is_start: bool = False
    is_end: bool = False
    options: dict = field(default_factory=dict)
    """Of the stream, with its start only: see `penstock.stream_options`."""
    finalize: bool = False
    """Ends the segment behind these samples; the stream goes on as if it began there. Nothing new with `is_end`."""

    @property
    def is_final(self) -> bool:
        """True for the last request of a segment."""
        return self.is_end or self.finalize


class FeatureReply(NamedTuple):
    """What goes to the encoder."""

    lease: Lease
    chunks: MelChunks
    ends_segment: bool
    """True where the segment ends and the stream goes on."""


def chunk_geometry(config: ModelConfig, context: AttentionContext) -> ChunkGeometry:
    """Chunks of `factor * (right + 1)` mel frames."""
    factor = config.encoder.subsampling_factor
    return ChunkGeometry(
        chunk_mel_frames=factor * context.chunk_encoder_frames,
        virtual_mel_frames=factor - 1,
        hop_samples=config.features.hop_samples,
        frame_samples=config.features.window_samples,
    )


class FeatureStage:
    """Admits streams and turns their samples into chunks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext,
        table: StreamTable,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
    ):
        config = checkpoint.config
        device = prepare_device(device)
        tensors = checkpoint.tensors("features.")
        log_mel = LogMel(
            config.features,
            tensors["features.window"].to(device),
            tensors["features.mel_filterbank"].to(device),
        )
        geometry = chunk_geometry(config, config.encoder.select_context(context))
        self.table = table
        self._extractor = FeatureExtractor(log_mel, geometry, table.slots, device)
        self._decoding = decoding
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self.samples_taken = 0
        """Samples of all requests that were not refused."""
        self._max_request_samples = int(MAX_REQUEST_S * config.features.sample_rate_hz)

    @torch.inference_mode()
    def rehearse(self, streams: int) -> None:
        """A chunk for so many streams, before there are any: what it needs of memory is then taken once and for all."""
        slots = list(range(min(streams, self.table.slots)))
        for slot in slots:
            self._extractor.open(slot)  # as each stream does that gets it
        silence = np.zeros(self._extractor.geometry.window_samples, np.float32)
        self._extractor.extract(slots, [silence] * len(slots), [False] * len(slots))

    @torch.inference_mode()
    def process(self, requests: list[AudioRequest]) -> list[FeatureReply | StreamError]:
        """Answers each request (all of different streams) with its chunks or with an error.

        A refused request leaves its stream as it was, but a refused start opens nothing and a refused end closes.
        """
        answers: list = [None] * len(requests)
        # A start may close lost streams and take their slots: none of them may be in this batch already.
        for i in sorted(range(len(requests)), key=lambda i: not requests[i].is_start):
            answers[i] = self._admit(requests[i])
        admitted = [i for i, answer in enumerate(answers) if isinstance(answer, Lease)]
        try:
            chunks = self._extractor.extract(
                [answers[i].slot for i in admitted],
                [requests[i].samples for i in admitted],
                [requests[i].is_final for i in admitted],
            )
        except STEP_ERRORS as error:  # samples of these streams are lost
            for i in admitted:
                self.table.close(requests[i].stream_id, "was lost by the front end")
                answers[i] = StreamError(StreamErrorKind.INTERNAL, f"the front end failed: {error}")
            return answers
        for i, row in zip(admitted, chunks, strict=True):
            lease, request = answers[i], requests[i]
            self.table.hand_on(lease)
            self.samples_taken += len(request.samples)
            if request.is_end:
                self.table.close(request.stream_id)
            elif request.finalize:
                self._extractor.end_segment(lease.slot)
            answers[i] = FeatureReply(lease, row, request.finalize and not request.is_end)
        return answers

    def _admit(self, request: AudioRequest) -> Lease | StreamError:
        try:
            lease = None if request.is_start else self.table.look_up(request.stream_id)
            problem = self._problem(request)
            if problem is None and lease is None:
                lease = self.table.open(request.stream_id)
                self._extractor.open(lease.slot)
        except StreamError as error:
            return error
        if problem is None:
            return lease
        if lease is not None and request.is_end:
            self.table.close(request.stream_id)
        return StreamError(StreamErrorKind.INVALID_ARGUMENT, f"stream {request.stream_id!r}: {problem}")

    def _options_problem(self, request: AudioRequest) -> str | None:
        """Found here, before a slot is taken, although the decoder is what uses the options."""
        if not request.is_start:
            names = ", ".join(map(repr, sorted(request.options)))
            return f"{names} is not accepted after the start; accepted: {FINALIZE}"
        try:
            tokenize_phrases(parse_stream_options(request.options, self._decoding).phrases, self._tokenizer)
        except StreamError as error:
            return str(error)
        return None

    def _problem(self, request: AudioRequest) -> str | None:
        samples = request.samples
        if request.options and (problem := self._options_problem(request)):
            return problem
        if type(request.finalize) is not bool:
            return f"{FINALIZE} is {request.finalize!r}; accepted: true, false"
        if samples.ndim != 1 or samples.dtype != np.float32:
            return f"samples are {samples.dtype} {list(samples.shape)}, expected float32 [n]"
        if len(samples) > self._max_request_samples:
            return f"{len(samples)} samples in one request, at most {self._max_request_samples} ({MAX_REQUEST_S:g} s)"
        # NaN compares false, so one comparison finds it as well.
        usable = np.abs(samples) <= MAX_MAGNITUDE
        if not usable.all():
            return (
                f"{int((~usable).sum())} of {len(samples)} samples are not finite or beyond {MAX_MAGNITUDE:g}; "
                "expected mono samples in -1 .. 1"
            )
        return None
