"""OfflineRecognizer: whole recordings through an offline model, several at once; samples in, words out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.encoder.precision import AUTO, open_window_encoder
from penstock.encoder.window.attention import Band, parse_attention
from penstock.errors import ErrorCode, SettingError, StreamError
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import ModelConfig
from penstock.model.resolve import resolve_model
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.option_reader import OptionReader
from penstock.pipeline.options.stream_options import StreamOptions
from penstock.pipeline.options.windows import ENCODING_SHARE, band_of, decoded_frames, is_long
from penstock.pipeline.options.windows import batch_audio_s as batch_audio_s_of
from penstock.pipeline.results.results import StreamResult, joined
from penstock.pipeline.slots.guard import NOT_COUNTED, STEP_ERRORS
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import END, START, Column, Ticket
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.runtime import check_device_works
from penstock.transcription.recording import Recording

MAX_BATCH = 32

Options = Mapping[str, Any]


class OfflineRecognizer:
    """Recognizes whole recordings with an offline model, several in one batch; single-threaded.

    A recording's result does not depend on the others of its batch.
    """

    def __init__(
        self,
        model: str | Path,
        max_batch: int = MAX_BATCH,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        precision: str = AUTO,
        batch_audio_s: float | None = None,
        attention: str | None = None,
    ):
        """model: a bundle, a checkpoint or a hub id of an offline model; SettingError for a streaming one.

        max_batch, batch_audio_s: recordings and seconds of audio of one batch; a longer recording is one by itself. By
        default 120 s on a CPU, 1,200 s on a GPU.
        decoding, precision: as in `StreamingRecognizer`. attention: what an encoder frame attends to, "full" (all of
        its recording) or "local=128,128"; by default the checkpoint's, of recordings above 10 min local=128,128.
        """
        audio_s = batch_audio_s_of(torch.device(device).type) if batch_audio_s is None else batch_audio_s
        for name, value in (("max_batch", max_batch), ("batch_audio_s", audio_s)):
            if not value > 0:  # NaN, too
                raise SettingError(f"{name} is {value}; accepted: numbers above 0")
        checkpoint = Checkpoint(resolve_model(str(model)))
        self.config: ModelConfig = checkpoint.config
        if not self.config.encoder.is_offline:
            raise SettingError(f"{checkpoint.directory.name} is a streaming model; accepted: an offline model")
        self._name, self._device = checkpoint.directory.name, device
        self.max_batch, self.batch_audio_s = max_batch, audio_s
        self._mel = WindowMel(LogMel.of(checkpoint))
        self._options = OptionReader(checkpoint, decoding)
        self._encoder = open_window_encoder(checkpoint, device, precision)
        self._decoder = DecoderStage(
            checkpoint, max_batch, SlotLedger(max_batch), device, decoding, precision=precision
        )
        self._generation = 0
        self._attention = None if attention is None else (parse_attention(attention),)

    @property
    def sample_rate_hz(self) -> int:
        """Rate that samples must have."""
        return self.config.features.sample_rate_hz

    def __repr__(self) -> str:
        return f"<OfflineRecognizer {self._name} {self._device}>"

    def check_options(self, options: Options) -> None:
        """Raises StreamError if a recording cannot be recognized with these options."""
        self._options.read(options)

    def transcribe(
        self, recordings: Sequence[np.ndarray], options: Options | Sequence[Options] | None = None
    ) -> list[StreamResult | StreamError]:
        """Returns the result of each recording, or why it has none; the others continue.

        recordings: mono samples [n] at the recognizer's rate, floats in -1 .. 1 or int16, at least 10 ms. options: of
        all, or of each, by the names of `penstock_client.StreamOptions`.
        """
        each = [options or {}] * len(recordings) if options is None or isinstance(options, Mapping) else options
        answers: list[StreamResult | StreamError] = []
        for batch in self._batches([np.size(samples) for samples in recordings]):
            answers += self.recognize([self._read(*one) for one in zip(recordings[batch], each[batch], strict=True)])
        return answers

    def open(self, options: Options) -> Recording:
        """A recording whose samples come in parts. Raises StreamError as `check_options`."""
        return Recording(self._mel.open(), self.config.features, self._options.read(options))

    def _read(self, samples: np.ndarray, options: Options) -> Recording | StreamError:
        try:
            recording = self.open(options)
        except StreamError as error:
            return error
        recording.add(samples)
        recording.end()
        return recording

    def _batches(self, lengths: Sequence[int]) -> Iterator[slice]:
        begin, limit = 0, self.batch_audio_s * self.sample_rate_hz
        while begin < len(lengths):
            end, total = begin + 1, lengths[begin]
            while end < min(len(lengths), begin + self.max_batch) and total + lengths[end] <= limit:
                total, end = total + lengths[end], end + 1
            yield slice(begin, end)
            begin = end

    @torch.inference_mode()
    def recognize(
        self, recordings: Sequence[Recording | StreamError], note: Callable[[float], None] = lambda share: None
    ) -> list[StreamResult | StreamError]:
        """Returns the results of recordings that have ended, in one batch, and forgets the log-mel of each.

        recordings: with errors, which are passed on; note: called with the share of the work that is done, 0 .. 1.
        """
        good = [one for one in recordings if isinstance(one, Recording) and one.error is None]
        bands = [self._band(one.samples, one.options.window) for one in good]
        failure: StreamError | None = None
        results: Iterator[StreamResult | StreamError] = iter(())
        try:
            mels = [one.take() for one in good]
            encoded = self._encoder.encode(mels, bands, lambda share: note(ENCODING_SHARE * share))
        except STEP_ERRORS as error:
            check_device_works(self._device, error)
            failure = StreamError(ErrorCode.STREAM_LOST, f"the encoder failed: {error}")
        else:
            leased = zip(self._leases(len(good)), encoded, good, strict=True)
            rows = [_Frames(lease, frames, one.samples, one.options) for lease, frames, one in leased]
            results = iter(self._decode(rows, note))
        errors = [one if isinstance(one, StreamError) else one.error or failure for one in recordings]
        return [next(results) if error is None else error for error in errors]

    def _band(self, samples: int, window: str | None) -> Band | None:
        if self._attention is not None:
            return self._attention[0]
        return band_of(is_long(samples, self.sample_rate_hz, window), self._encoder.band)

    def _leases(self, count: int) -> Iterator[Lease]:
        """One slot for each recording of a batch."""
        for slot in range(count):
            self._generation += 1
            yield Lease(slot, self._generation)

    def _decode(
        self, recordings: Sequence["_Frames"], note: Callable[[float], None]
    ) -> list[StreamResult | StreamError]:
        """Decodes all frames, a few of every recording at a time."""
        step = decoded_frames(self.config)
        answers: list[list[StreamResult | StreamError]] = [[] for _ in recordings]
        most = max((recording.frames for recording in recordings), default=0)
        begin, running = 0, list(range(len(recordings)))
        while running:
            parts = [recordings[row].part(begin, step, self.config.encoder_frame_samples) for row in running]
            options = {place: recordings[row].options for place, row in enumerate(running) if begin == 0}
            ticket = Ticket(np.stack([row for row, _ in parts]), options=options)
            (reply,) = self._decoder.process_tickets([ticket], [torch.cat([frames for _, frames in parts])])
            assert not isinstance(reply, StreamError), "the ticket is that of the frames"
            for place, row in enumerate(running):
                answers[row].append(reply.answers[place])
            begin += step
            note(ENCODING_SHARE + (1 - ENCODING_SHARE) * min(begin / most, 1.0))
            running = [row for row in running if begin < recordings[row].frames and _is_result(answers[row][-1])]
        return [joined(parts) for parts in answers]


class _Frames:
    """The frames of one recording on their way through the decoder."""

    def __init__(self, lease: Lease, encoded: torch.Tensor, samples: int, options: StreamOptions):
        self._lease, self._encoded, self._samples, self.options = lease, encoded, samples, options
        self.frames = len(encoded)

    def part(self, begin: int, count: int, frame_samples: int) -> tuple[np.ndarray, torch.Tensor]:
        """The row of a ticket for the next `count` frames, fewer at the end, and these frames [T, D]."""
        end = min(begin + count, self.frames)
        is_end = end == self.frames
        row = np.zeros(len(Column), np.int64)
        row[[Column.SLOT, Column.GENERATION]], row[Column.NUMBER] = self._lease, NOT_COUNTED
        row[Column.FLAGS] = START * (begin == 0) + END * is_end
        row[Column.COVERED] = self._samples if is_end else end * frame_samples
        row[Column.FRAMES] = end - begin
        return row, self._encoded[begin:end].float()


def _is_result(answer: StreamResult | StreamError) -> bool:
    return isinstance(answer, StreamResult)
