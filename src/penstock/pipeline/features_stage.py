"""First stage: owns the stream table; samples in, whole log-mel chunks out.

Independent of the encoder and of words.
"""

from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel, MelChunks
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.audio_rows import AudioRequest, AudioRows, StreamNumber
from penstock.pipeline.decoder_offer import offer_decoders
from penstock.pipeline.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.language_offer import offer_languages
from penstock.pipeline.rounds import process_in_rounds
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.table import Lease, StreamTable
from penstock.pipeline.slots.ticket import END, NO_ROW, START
from penstock.pipeline.slots.ticket import FINALIZE as FINALIZE_FLAG
from penstock.pipeline.stream_options import FINALIZE, MAX_REQUEST_S, StreamOptions, parse_stream_options
from penstock.runtime import check_device_works, prepare_device
from penstock.scoring.wfst.words import read_words

MAX_MAGNITUDE = 2.0
"""Full scale is 1. Codecs and resampling overshoot by less than 6 dB; speech scaled as int16 reaches thousands."""


class FeatureReply(NamedTuple):
    """The output for the encoder stage."""

    lease: Lease
    number: int
    """The stream's requests before this one."""
    chunks: MelChunks
    finalize: bool
    """True if the segment ends here and the stream continues."""
    options: StreamOptions | None
    """The stream's options, with its start; None after it."""


class FeatureRows(NamedTuple):
    """The replies to the rows of one Triton request."""

    rows: np.ndarray
    """[R, 8] int64, the rows of the request's ticket."""
    mel: torch.Tensor
    """[C, N, F] float32, the chunks of all rows, one row after another."""
    options: dict[int, StreamOptions]
    """By row that starts a stream."""
    errors: dict[int, StreamError]
    """By rejected row."""
    is_batched: bool


class _Admission(NamedTuple):
    lease: Lease
    options: StreamOptions | None


class FeatureStage:
    """Admits streams and converts their samples to log-mel chunks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext,
        table: StreamTable,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
    ):
        config = checkpoint.config
        self._device = place = prepare_device(device)
        tensors = checkpoint.tensors("features.")
        log_mel = LogMel(
            config.features,
            tensors["features.window"].to(place),
            tensors["features.mel_filterbank"].to(place),
        )
        geometry = chunk_geometry(config, config.encoder.select_context(context))
        self.table = table
        self._subsampling_factor = config.encoder.subsampling_factor
        self._extractor = FeatureExtractor(log_mel, geometry, table.slots, place)
        self._decoding, self._offer = decoding, offer_decoders(config, decoding)
        self._languages = offer_languages(config, decoding)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._graph_words = read_words(decoding.graph) if decoding.graph else None
        self.samples_taken = 0
        """Samples of all accepted requests."""
        self._max_request_samples = int(MAX_REQUEST_S * config.features.sample_rate_hz)

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Runs one chunk of `streams` streams, so that its memory is allocated before the first request."""
        slots = list(range(min(streams, self.table.slots)))
        for slot in slots:
            self._extractor.open(slot)  # reset again when a stream gets the slot
        silence = np.zeros(self._extractor.geometry.window_samples, np.float32)
        self._extractor.extract(slots, [silence] * len(slots), [False] * len(slots))

    @torch.inference_mode()
    def process(self, requests: list[AudioRequest]) -> list[FeatureReply | StreamError]:
        """Returns for each request (all of different streams) its chunks or an error.

        A rejected request leaves its stream unchanged; a rejected start opens nothing, a rejected end closes.
        Raises DeviceLostError if no later step can succeed.
        """
        answers: list = [None] * len(requests)
        # Starts first: a start may close a lost stream and reuse its slot, so no request of it may be admitted before.
        for i in sorted(range(len(requests)), key=lambda i: not requests[i].is_start):
            answers[i] = self._admit(requests[i])
        admitted = [i for i, answer in enumerate(answers) if isinstance(answer, _Admission)]
        try:
            chunks = self._extractor.extract(
                [answers[i].lease.slot for i in admitted],
                [requests[i].samples for i in admitted],
                [requests[i].is_final for i in admitted],
            )
        except STEP_ERRORS as error:  # samples of these streams are lost
            check_device_works(self._device, error)
            for i in admitted:
                self.table.close(requests[i].stream_id, "was lost by the features stage", ErrorCode.STREAM_LOST.name)
                answers[i] = StreamError(ErrorCode.STREAM_LOST, f"the features stage failed: {error}")
            return answers
        for i, row in zip(admitted, chunks, strict=True):
            (lease, options), request = answers[i], requests[i]
            number = self.table.forward(lease, len(request.samples), request.is_final)
            self.samples_taken += len(request.samples)
            if request.is_end:
                self.table.close(request.stream_id)
            elif request.finalize:
                self._extractor.end_segment(lease.slot)
            answers[i] = FeatureReply(lease, number, row, request.finalize and not request.is_end, options)
        return answers

    def process_rows(self, batch: list[AudioRows | StreamError]) -> list[FeatureRows | StreamError]:
        """Returns the replies to a batch of Triton requests, in order within each stream.

        A request of one row that is rejected is answered with the row's error.
        """
        found = [rows for rows in batch if not isinstance(rows, StreamError)]
        requests = [request for rows in found for request in rows.requests.values()]
        replies = iter(process_in_rounds(self.process, requests, lambda request: request.stream_id))
        return [
            rows if isinstance(rows, StreamError) else self._to_rows(rows, list(islice(replies, len(rows.requests))))
            for rows in batch
        ]

    def _to_rows(self, rows: AudioRows, replies: list[FeatureReply | StreamError]) -> FeatureRows | StreamError:
        if not rows.is_batched and isinstance(replies[0], StreamError):
            return replies[0]
        ticket = np.tile(NO_ROW, (rows.row_count, 1))
        options, errors, mel = {}, dict(rows.errors), []
        for (row, request), reply in zip(rows.requests.items(), replies, strict=True):
            if isinstance(reply, StreamError):
                errors[row] = reply
                continue
            chunks = reply.chunks
            flags = START * request.is_start + END * request.is_end + FINALIZE_FLAG * reply.finalize
            ticket[row] = (
                *reply.lease, reply.number, flags, len(chunks.mel), chunks.last_valid_mel_frames,
                chunks.covered_samples, self._frame_count(chunks),
            )  # fmt: skip
            mel.append(chunks.mel)
            if reply.options is not None:
                options[row] = reply.options
        whole = mel[0] if len(mel) == 1 else torch.cat([self._extractor.no_chunks(), *mel])
        return FeatureRows(ticket, whole, options, errors, rows.is_batched)

    def _frame_count(self, chunks: MelChunks) -> int:
        """Encoder frames of chunks."""
        whole = self._extractor.geometry.chunk_mel_frames // self._subsampling_factor
        return (
            (len(chunks.mel) - 1) * whole - (-chunks.last_valid_mel_frames // self._subsampling_factor)
            if len(chunks.mel)
            else 0
        )

    def parse_options(self, options: Mapping[str, Any]) -> StreamOptions:
        """Validates options of a stream's start; StreamError as from `parse_stream_options`."""
        return parse_stream_options(
            options, self._decoding, self._tokenizer, self._offer, self._graph_words, self._languages
        )

    def _admit(self, request: AudioRequest) -> "_Admission | StreamError":
        """Gives a valid request its stream's lease; validates the options before the stream takes a slot."""
        try:
            if request.is_start:
                self._check_number(request.stream_id)
            lease = None if request.is_start else self.table.look_up(request.stream_id)
        except StreamError as error:
            return error
        try:
            options = self.parse_options(request.options) if request.is_start else None
            self._check_request(request)
        except StreamError as error:
            if lease is not None and request.is_end:
                self.table.close(request.stream_id, ended_by=error.code.name)
            return StreamError(error.code, f"stream {request.stream_id!r}: {error.message}")
        try:
            lease = lease or self.table.open(request.stream_id, options.decoder if options else "")
        except StreamError as error:
            return error
        if request.is_start:
            self._extractor.open(lease.slot)
        return _Admission(lease, options)

    def _check_number(self, stream_id: Hashable) -> None:
        """StreamError if a stream number starts that is open: its client gives each stream another one."""
        if isinstance(stream_id, StreamNumber) and self.table.is_open(stream_id):
            raise StreamError(ErrorCode.REQUEST_INVALID, f"stream {stream_id!r} is open; accepted: START once")

    def _check_request(self, request: AudioRequest) -> None:
        """StreamError for parameters after the start, a wrong `finalize` or unusable samples."""
        if request.options and not request.is_start:
            names = ", ".join(map(repr, sorted(request.options)))
            message = f"{names} is not accepted after the start; accepted: {FINALIZE}"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        if type(request.finalize) is not bool:
            raise StreamError(ErrorCode.OPTION_INVALID, f"{FINALIZE} is {request.finalize!r}; accepted: true, false")
        self.check_samples(request.samples)

    def check_samples(self, samples: np.ndarray) -> None:
        """Raises StreamError AUDIO_INVALID for samples that a request cannot have."""
        if problem := self._audio_problem(samples):
            raise StreamError(ErrorCode.AUDIO_INVALID, problem)

    def _audio_problem(self, samples: np.ndarray) -> str | None:
        if samples.ndim != 1 or samples.dtype != np.float32:
            return f"samples are {samples.dtype} {list(samples.shape)}, expected float32 [n]"
        if len(samples) > self._max_request_samples:
            return f"{len(samples)} samples in one request, at most {self._max_request_samples} ({MAX_REQUEST_S:g} s)"
        # NaN compares false, so one comparison also finds NaN.
        usable = np.abs(samples) <= MAX_MAGNITUDE
        if not usable.all():
            return (
                f"{int((~usable).sum())} of {len(samples)} samples are not finite or beyond {MAX_MAGNITUDE:g}; "
                "expected float32 in -1 .. 1 (int16 divided by 32768)"
            )
        return None
