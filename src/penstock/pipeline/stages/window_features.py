"""First stage of an offline model: owns the stream table; samples in, log-mel of whole streams out, piece by piece.

A stream's log-mel stays here until its END, because each bin is normalized over all frames. The stream stays open after
END: its client polls until the work of the later stages is done, or cancels with another END.
"""

from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import PIECE_MEL_FRAMES, MelPieces, WindowMel
from penstock.model.bundle import Checkpoint
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.options.stream_options import StreamOptions
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import COMPLETE, END, FINALIZE, LOCAL, NO_ROW, POLL, START, Column
from penstock.pipeline.stages.admission import AdmittingStage, FeatureRows
from penstock.pipeline.stages.audio_rows import AudioRows
from penstock.pipeline.windows import check_length, is_long
from penstock.runtime import trim_heap

MAX_CALL_MEL_FRAMES = 64 * PIECE_MEL_FRAMES
"""Frames that one call passes on; other streams' follow with their next polls."""
_TRIMMED_MEL_FRAMES = 60_000  # of a stream whose memory is returned to the system, 10 min


class WindowLimits(NamedTuple):
    """Audio that a server accepts, in samples."""

    stream_samples: int
    """Of one stream."""
    all_samples: int
    """Of all open streams."""


class WindowFeatureStage(AdmittingStage):
    """Admits streams and keeps the log-mel of each until its END, on the CPU."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        table: StreamTable,
        limits: WindowLimits,
        decoding: DecodingConfig = DEFAULT_DECODING,
    ):
        super().__init__(checkpoint, table, decoding)
        self._features, tensors = checkpoint.config.features, checkpoint.tensors("features.")
        log_mel = LogMel(self._features, tensors["features.window"], tensors["features.mel_filterbank"])
        self._mel, self._limits = WindowMel(log_mel), limits
        self._files: dict[int, _File] = {}
        """By slot, of open streams."""

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Computes a piece, so that its memory is allocated before the first request."""
        self._mel.pieces(torch.zeros(PIECE_MEL_FRAMES * self._features.hop_samples))

    @torch.inference_mode()
    def _process(self, rows: AudioRows) -> FeatureRows:
        self.table.close_due()
        self._forget_closed()
        ticket = np.tile(NO_ROW, (len(rows.flags), 1))
        options: dict[int, StreamOptions] = {}
        errors, problems = dict(rows.errors), {**self._audio_problems(rows), **rows.problems}
        pieces = [torch.zeros(0, self._features.mel_bins)]
        ends = rows.lengths.cumsum()
        for row in range(len(rows.flags)):
            if row in errors:
                continue
            samples = rows.samples[ends[row] - rows.lengths[row] : ends[row]]
            try:
                file = self._admit_file(rows, row, ticket, options, problems.get(row))
                piece = self._take(rows, row, samples, file, ticket[row], sum(map(len, pieces)) < MAX_CALL_MEL_FRAMES)
            except StreamError as error:
                errors[row], ticket[row] = error, NO_ROW
                options.pop(row, None)
                self._forget_closed()
                continue
            if piece is not None:
                pieces.append(piece)
        return FeatureRows(ticket, torch.cat(pieces).unsqueeze(1), options, errors, rows.is_batched)

    def _admit_file(
        self,
        rows: AudioRows,
        row: int,
        ticket: np.ndarray,
        options: dict[int, StreamOptions],
        problem: StreamError | None,
    ) -> "_File":
        """Admits a row, and completes its row of the ticket as far as `FLAGS`."""
        ticket[row, Column.SLOT] = slot = self._admit_special(rows, row, options, problem)
        if rows.flags[row] & START:
            self._forget_closed()  # a stream that was started again
            self._files[slot] = _File(self._mel.open(), self.table.open_generation(slot), options[row].window)
        self._forward(rows, ticket, np.array([row]))
        ticket[row, Column.FLAGS] &= START
        return self._files[slot]

    def _take(
        self, rows: AudioRows, row: int, samples: np.ndarray, file: "_File", columns: np.ndarray, has_room: bool
    ) -> torch.Tensor | None:
        """Adds the samples [n] of an admitted row; returns the piece of log-mel that it passes on.

        columns: [8] int64, its row of the ticket, which this completes.
        """
        is_end, stream_id = rows.flags[row] & END > 0, rows.stream_ids[row]
        try:
            self.samples_held += len(samples)  # as `file.mel` counts them, also where it fails
            file.mel.add(torch.from_numpy(np.ascontiguousarray(samples)))
            self.samples_taken += len(samples)
            if is_end and not file.has_ended and file.mel.samples:
                file.mel.end()
                file.has_ended, is_end = True, False
            piece = file.mel.take() if file.has_ended and file.mel.pieces_left and has_room and not is_end else None
        except STEP_ERRORS as error:
            self.table.take_back(columns[[Column.SLOT]])
            self.table.close(stream_id, "was lost by the features stage", ErrorCode.STREAM_LOST.name)
            raise StreamError(ErrorCode.STREAM_LOST, f"the features stage failed: {error}") from error
        if not file.has_ended and not is_end:
            return None
        columns[Column.COVERED] = file.mel.samples
        if is_end:  # cancelled, or a probe
            columns[Column.FLAGS] |= END
            self.table.close(stream_id, "was cancelled" if file.has_ended else "has ended")
            self._forget_closed()
            return None
        is_local = is_long(file.mel.samples, self._features.sample_rate_hz, file.window)
        columns[Column.FLAGS] |= POLL | LOCAL * is_local
        if piece is not None:
            columns[Column.CHUNKS] = len(piece)
            columns[Column.FLAGS] |= COMPLETE * (not file.mel.pieces_left)
        return piece

    def _check_row(self, rows: AudioRows, row: int, slot: int) -> None:
        length, flags, file = int(rows.lengths[row]), int(rows.flags[row]), self._files.get(slot)
        if flags & FINALIZE and not flags & END:
            message = f"{FINALIZE_PARAMETER} is not accepted by an offline model; accepted: the end of the stream"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        if file is not None and file.has_ended:
            if length:
                message = f"{length} samples after the end of the stream; accepted: empty requests, which poll"
                raise StreamError(ErrorCode.REQUEST_INVALID, message)
            return
        total = (file.mel.samples if file is not None else 0) + length
        rate_hz = self._features.sample_rate_hz
        if total > min(self._limits):
            most = f"{self._limits.stream_samples / rate_hz / 60:g} min (--max-file-minutes)"
            if self._limits.all_samples < self._limits.stream_samples:
                most = f"{self._limits.all_samples / rate_hz:g} s (--max-audio-s)"
            raise StreamError(ErrorCode.AUDIO_TOO_LONG, f"more than {most} of audio; accepted: up to {most}")
        if self.samples_held + length > self._limits.all_samples:
            limit = f"{self._limits.all_samples / rate_hz:.0f} s (--max-audio-s)"
            message = f"the audio of all streams would exceed {limit}; try again later"
            raise StreamError(ErrorCode.AUDIO_MEMORY_FULL, message)
        is_probe = flags & START and not length
        if flags & END and not is_probe:
            check_length(total, self._features)

    def _forget_closed(self) -> None:
        """Frees the audio of streams that are not open any more, for whatever reason."""
        closed = [slot for slot, file in self._files.items() if self.table.open_generation(slot) != file.generation]
        for slot in closed:
            file = self._files.pop(slot)
            self.samples_held -= file.mel.samples
            if file.mel.mel_frames > _TRIMMED_MEL_FRAMES:
                del file
                trim_heap()


class _File:
    """An open stream."""

    def __init__(self, mel: MelPieces, generation: int, window: str | None):
        self.mel, self.generation, self.window = mel, generation, window
        self.has_ended = False
