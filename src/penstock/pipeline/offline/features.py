"""First stage of an offline model: owns the stream table; samples in, log-mel of files and of live windows out.

A file's log-mel stays here until its END, because each bin is normalized over all frames; that of a live window leaves
once the window is complete. A stream stays open after END: its client polls until the work of the later stages is done,
or cancels with another END.
"""

from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import PIECE_MEL_FRAMES, WindowMel
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline.stream_audio import FileAudio, LiveAudio, StreamAudio
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.options.stream_options import OptionReader, ResolvedOptions
from penstock.pipeline.options.windows import check_length, live_window
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import COMPLETE, END, FINALIZE, NO_ROW, POLL, SPEAKER_MODE, START, Column
from penstock.pipeline.stages.admission import AdmittingStage, FeatureRows
from penstock.pipeline.stages.audio_rows import AudioRows
from penstock.runtime import trim_heap
from penstock.speakers.bundle import SpeakerConfig
from penstock_common.options import FILE

MAX_CALL_MEL_FRAMES = 64 * PIECE_MEL_FRAMES
"""Frames that one call passes on; other streams' follow with their next polls."""
_TRIMMED_SAMPLES = 10_000_000  # 10 min; the memory of a longer stream is returned to the system


class WindowLimits(NamedTuple):
    """Audio that a server accepts, in samples."""

    stream_samples: int
    """Audio of one stream."""
    all_samples: int
    """Audio of all open streams."""


class WindowFeatureStage(AdmittingStage):
    """Admits streams and keeps the log-mel of each until its END, on the CPU."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        table: StreamTable,
        limits: WindowLimits,
        decoding: DecodingConfig = DEFAULT_DECODING,
        window: str = FILE,
        speakers: SpeakerConfig | None = None,
    ):
        """window: of streams whose options have none; speakers: of the model that is served beside the recognizer."""
        reader = OptionReader(checkpoint, decoding, speakers)
        super().__init__(table, checkpoint.config.features.sample_rate_hz, reader)
        self._config, self._default_window = checkpoint.config, window
        self._features = checkpoint.config.features
        self._mel, self._limits = WindowMel(LogMel.of(checkpoint)), limits
        self._files: dict[int, _File] = {}
        """By slot, of open streams."""

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Computes a piece, so that its memory is allocated before the first request."""
        self._mel.pieces(torch.zeros(PIECE_MEL_FRAMES * self._features.hop_samples))

    @torch.inference_mode()
    def _process(self, rows: AudioRows) -> FeatureRows:
        # First: the audio of streams that are over would count against the limit of all streams.
        self.table.close_due()
        self._forget_closed()
        ticket = np.tile(NO_ROW, (len(rows.flags), 1))
        options: dict[int, ResolvedOptions] = {}
        errors, problems = dict(rows.errors), {**self._audio_problems(rows), **rows.problems}
        pieces = [torch.zeros(0, self._features.mel_bins)]
        ends = rows.lengths.cumsum()
        # One by one: whether a row fits depends on the audio that those before it hold.
        for row in range(len(rows.flags)):
            if row in errors:
                continue
            samples = rows.samples[ends[row] - rows.lengths[row] : ends[row]]
            try:
                audio = self._admit_file(rows, row, ticket, options, problems.get(row))
                piece = self._add(rows, row, samples, audio, ticket[row], sum(map(len, pieces)) < MAX_CALL_MEL_FRAMES)
            except StreamError as error:
                errors[row], ticket[row] = error, NO_ROW
                options.pop(row, None)
                # The error may have closed the stream, whose audio must not stay.
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
        options: dict[int, ResolvedOptions],
        problem: StreamError | None,
    ) -> StreamAudio:
        """Admits a row, and completes its row of the ticket as far as `FLAGS`."""
        ticket[row, Column.SLOT] = slot = self._admit_special(rows, row, options, problem)
        if rows.flags[row] & START:
            self._forget_closed()  # a stream that was started again
            audio = self._open(options[row])
            self._files[slot] = _File(audio, self.table.open_generation(slot))
            self.samples_held += audio.held_samples
            if isinstance(audio, LiveAudio):
                ticket[row, Column.LIVE_WINDOW] = audio.window.packed
        elif rows.flags[row] & FINALIZE and row not in options:
            # The segment may end with a later row: the decoder counts the ends.
            options[row] = self._options[slot].model_copy(update={"keeps_phrases": True})
        self._forward(rows, ticket, np.array([row]))
        # END and FINALIZE mean something else from here on: `_add` sets them when they are due.
        ticket[row, Column.FLAGS] &= START
        if rows.flags[row] & START:
            ticket[row, Column.FLAGS] |= SPEAKER_MODE * options[row].speaker_mode_number
        return self._files[slot].audio

    def _add(
        self, rows: AudioRows, row: int, samples: np.ndarray, audio: StreamAudio, columns: np.ndarray, has_room: bool
    ) -> torch.Tensor | None:
        """Adds the samples [n] of an admitted row; returns the log-mel that it passes on.

        columns: [8] int64, its row of the ticket, which this completes.
        """
        is_end, stream_id, slot = rows.flags[row] & END > 0, rows.stream_ids[row], int(columns[Column.SLOT])
        had_ended, held = audio.has_ended, audio.held_samples
        try:
            audio.add(torch.from_numpy(np.ascontiguousarray(samples)))
            self.samples_taken += len(samples)
            if is_end and not had_ended and audio.samples:
                audio.end()
                is_end = False
            elif isinstance(audio, LiveAudio) and rows.flags[row] & FINALIZE and not had_ended:
                audio.end_segment()
            mel = audio.next_mel(self.table.encoded_windows(slot)) if has_room and not is_end else None
        except STEP_ERRORS as error:
            # Before the stream closes, as in `FeatureStage`: no later stage will settle this request.
            self.table.take_back(columns[[Column.SLOT]])
            self.table.close(stream_id, "was lost by the features stage", ErrorCode.STREAM_LOST.name)
            raise StreamError(ErrorCode.STREAM_LOST, f"the features stage failed: {error}") from error
        finally:
            # After an error, too: the stream holds its samples until it is forgotten.
            self.samples_held += audio.held_samples - held
        columns[Column.COVERED] = audio.covered_samples
        if is_end:  # cancelled, or a probe
            columns[Column.FLAGS] |= END
            self.table.close(stream_id, "was cancelled" if had_ended else "has ended")
            self._forget_closed()
            return None
        columns[Column.FLAGS] |= audio.flags | POLL * audio.has_ended | COMPLETE * audio.is_complete
        if isinstance(audio, LiveAudio) and audio.flags & FINALIZE:
            columns[Column.SEGMENT_END] = audio.segment_end
        if mel is not None:
            columns[Column.CHUNKS] = len(mel)
        return mel

    def _open(self, options: ResolvedOptions) -> StreamAudio:
        window = live_window(options.window or self._default_window, self._config)
        if window is None:
            return FileAudio(self._mel.open(), options.window, self._features.sample_rate_hz)
        return LiveAudio(self._mel, window, self._config)

    def _check_row(self, rows: AudioRows, row: int, slot: int, options: ResolvedOptions | None) -> None:
        length, flags = int(rows.lengths[row]), int(rows.flags[row])
        is_start = options is not None and flags & START > 0
        audio = self._open(options) if options is not None and is_start else self._files[slot].audio
        if flags & FINALIZE and not flags & END and not isinstance(audio, LiveAudio):
            message = f"{FINALIZE_PARAMETER} is not accepted for a file; accepted: the end of the stream"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        if audio.has_ended:
            if length:
                message = f"{length} samples after the end of the stream; accepted: empty requests, which poll"
                raise StreamError(ErrorCode.REQUEST_INVALID, message)
            return
        rate_hz, total = self._features.sample_rate_hz, audio.samples + length
        grows = length
        if isinstance(audio, LiveAudio):
            grows = audio.held_after(length) - (0 if is_start else audio.held_samples)
        elif total > min(self._limits):
            most = f"{self._limits.stream_samples / rate_hz / 60:g} min (--max-file-minutes)"
            if self._limits.all_samples < self._limits.stream_samples:
                most = f"{self._limits.all_samples / rate_hz:g} s (--max-audio-s)"
            raise StreamError(ErrorCode.AUDIO_TOO_LONG, f"{total / rate_hz:g} s of audio; accepted: up to {most}")
        if (all_samples := self.samples_held + grows) > self._limits.all_samples:
            message = (
                f"{all_samples / rate_hz:g} s of audio of all streams; accepted: up to "
                f"{self._limits.all_samples / rate_hz:g} s (--max-audio-s), so try again later"
            )
            raise StreamError(ErrorCode.AUDIO_MEMORY_FULL, message)
        is_probe = flags & START and not length
        if flags & END and not is_probe and not isinstance(audio, LiveAudio):
            check_length(total, self._features)

    def _forget_closed(self) -> None:
        """Frees the audio of streams that are not open any more, for whatever reason."""
        closed = [slot for slot, file in self._files.items() if self.table.open_generation(slot) != file.generation]
        for slot in closed:
            file = self._files.pop(slot)
            held = file.audio.held_samples
            self.samples_held -= held
            # The last reference: `trim_heap` returns only what is free.
            del file
            if held > _TRIMMED_SAMPLES:
                trim_heap()


class _File(NamedTuple):
    """An open stream."""

    audio: StreamAudio
    generation: int
