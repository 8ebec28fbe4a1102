"""First stage: owns the stream table; samples in, whole log-mel chunks out.

Independent of the encoder and of words.
"""

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.stream_options import OptionReader
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import (
    END,
    FINALIZE,
    NO_ROW,
    OPEN,
    START,
    Column,
    encoder_frame_counts,
)
from penstock.pipeline.stages.admission import AdmittingStage, FeatureRows
from penstock.pipeline.stages.audio_rows import AudioRows
from penstock.speakers.bundle import SpeakerConfig


class FeatureStage(AdmittingStage):
    """Admits streams and converts their samples to log-mel chunks, on the CPU."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext,
        table: StreamTable,
        decoding: DecodingConfig = DEFAULT_DECODING,
        speakers: SpeakerConfig | None = None,
    ):
        """speakers: of the model that is served beside the recognizer."""
        config = checkpoint.config
        super().__init__(table, config.features.sample_rate_hz, OptionReader(checkpoint, decoding, speakers))
        geometry = chunk_geometry(config, config.encoder.select_context(context))
        self._subsampling_factor = config.encoder.subsampling_factor
        self._extractor = FeatureExtractor(LogMel.of(checkpoint), geometry, table.slots)

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Runs one chunk of `streams` streams, so that its memory is allocated before the first request."""
        slots = np.arange(min(streams, self.table.slots))
        lengths = np.full(len(slots), self._extractor.geometry.window_samples)
        are_all = np.ones(len(slots), bool)  # reset again when a stream gets the slot
        self._extractor.extract(slots, np.zeros(lengths.sum(), np.float32), lengths, are_all, ~are_all)

    @torch.inference_mode()
    def _process(self, rows: AudioRows) -> FeatureRows:
        ticket, options, errors = self._admit(rows)
        slots = ticket[:, Column.SLOT]
        admitted = (slots >= 0).nonzero()[0]
        # No copy where no row was rejected, which is nearly always.
        samples = rows.samples if len(admitted) == len(slots) else self._samples_of(rows, slots >= 0)
        own, lengths, flags = slots[admitted], rows.lengths[admitted], ticket[admitted, Column.FLAGS]
        try:
            is_first, is_last = (flags & START) > 0, (flags & (END | FINALIZE)) > 0
            extracted = self._extractor.extract(own, samples, lengths, is_first, is_last)
        except STEP_ERRORS as error:  # samples of these streams are lost
            # Before the streams close: their slots are free once as much has settled as went on, and this goes nowhere.
            self.table.take_back(own)
            for row in admitted.tolist():
                errors[row] = StreamError(ErrorCode.STREAM_LOST, f"the features stage failed: {error}")
                stream_id = self.table.stream_in(int(slots[row]))
                # None where the row had END: admission has closed that stream.
                if stream_id is not None:
                    self.table.close(stream_id, "was lost by the features stage", ErrorCode.STREAM_LOST.name)
            # All rows: whatever was admitted has lost its samples with this step.
            ticket[:] = NO_ROW
            return FeatureRows(ticket, self._extractor.no_chunks(), {}, errors, rows.is_batched)
        self.samples_taken += len(samples)
        chunk_mel_frames = self._extractor.geometry.chunk_mel_frames
        frames = encoder_frame_counts(
            extracted.chunks, extracted.last_valid_mel_frames, chunk_mel_frames, self._subsampling_factor
        )
        columns = (extracted.chunks, extracted.last_valid_mel_frames, extracted.covered_samples, frames)
        for column, values in enumerate(columns, start=Column.CHUNKS):
            ticket[admitted, column] = values
        ticket[admitted, Column.FLAGS] |= np.where((flags & FINALIZE > 0) & extracted.has_open, OPEN, 0)
        return FeatureRows(ticket, extracted.mel, options, errors, rows.is_batched)
