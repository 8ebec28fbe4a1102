"""Admits the rows of requests to the features stage: samples, options and the stream table. Independent of log-mel."""

from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.options.stream_options import MAX_REQUEST_S, OptionReader, ResolvedOptions
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import END, FINALIZE, NO_ROW, SPEAKER_MODE, START, Column
from penstock.pipeline.stages.audio_rows import AudioRows, StreamNumber, join_rows

MAX_MAGNITUDE = 2.0
"""Full scale is 1. Codecs and resampling overshoot by less than 6 dB; speech scaled as int16 reaches thousands."""
_ENDING = (ErrorCode.AUDIO_TOO_LONG, ErrorCode.AUDIO_MEMORY_FULL)
"""Errors after which a stream cannot go on."""


class FeatureRows(NamedTuple):
    """The replies to R rows."""

    rows: np.ndarray
    """[R, 8] int64, those of the request's ticket."""
    mel: torch.Tensor
    """[C, N, F] float32, the chunks of all rows, one row after another; of an offline model a mel frame each."""
    options: dict[int, ResolvedOptions]
    """By row that starts a stream, or changes it."""
    errors: dict[int, StreamError]
    """By rejected row."""
    is_batched: bool


class AdmittingStage:
    """Base class of the features stages: admits rows one by one or in runs, and answers requests."""

    samples_held = 0
    """Samples of all open streams, of an offline model; else 0."""

    def __init__(self, table: StreamTable, sample_rate_hz: int, reader: OptionReader):
        self.table, self.parse_options, self._parse_change = table, reader.read, reader.read_change
        self._options: dict[int, ResolvedOptions] = {}
        """By slot, without phrases."""
        self.samples_taken = 0
        """Samples of all accepted requests."""
        self.max_request_samples = int(MAX_REQUEST_S * sample_rate_hz)
        """Samples of one stream in a request, at most."""

    @staticmethod
    def _samples_of(rows: AudioRows, are_wanted: np.ndarray) -> np.ndarray:
        """The samples [n] of some rows."""
        ends = rows.lengths.cumsum()
        wanted = zip((ends - rows.lengths)[are_wanted].tolist(), ends[are_wanted].tolist(), strict=True)
        return np.concatenate([np.zeros(0, np.float32), *(rows.samples[start:end] for start, end in wanted)])

    def _admit(self, rows: AudioRows) -> tuple[np.ndarray, dict[int, ResolvedOptions], dict[int, StreamError]]:
        """Gives each valid row its stream's slot, in order: rows of a ticket [R, 8] as far as `FLAGS`, options, errors.

        Runs of rows that start and end nothing are looked up at once.
        """
        count = len(rows.flags)
        ticket = np.empty((count, len(NO_ROW)), np.int64)
        ticket[:] = NO_ROW
        slots = ticket[:, Column.SLOT]
        options: dict[int, ResolvedOptions] = {}
        errors, problems = dict(rows.errors), {**self._audio_problems(rows), **rows.problems}
        is_special = (rows.flags & (START | END)) > 0
        if errors or problems or rows.options:
            is_special[[*errors, *problems, *rows.options]] = True
        start = 0
        for row in [*is_special.nonzero()[0].tolist(), count]:
            if start < row:
                slots[start:row] = found = self.table.look_up_all(rows.stream_ids[start:row])
                for missing in (start + (found < 0).nonzero()[0]).tolist():
                    errors[missing] = self.table.problem_with(rows.stream_ids[missing])
                # Before a start after them, which could else take their slot: it would seem settled.
                self._forward(rows, ticket, start + (found >= 0).nonzero()[0])
            start = row + 1
            if row == count or row in errors:
                continue
            try:
                slots[row] = self._admit_special(rows, row, options, problems.get(row))
            except StreamError as error:
                errors[row] = error
                continue
            self._forward(rows, ticket, np.array([row]))
            if rows.flags[row] & START:
                ticket[row, Column.FLAGS] |= SPEAKER_MODE * options[row].speaker_mode_number
            # After the request was counted: the slot is free once that has settled, too.
            if rows.flags[row] & END:
                self.table.close(rows.stream_ids[row])
        return ticket, options, errors

    def _forward(self, rows: AudioRows, ticket: np.ndarray, places: np.ndarray) -> None:
        """Counts the requests of rows `places` [n], which have slots, and completes their rows of the ticket."""
        flags = rows.flags[places]
        flags = np.where(flags & END, flags & ~FINALIZE, flags)
        slots, is_final = ticket[places, Column.SLOT], (flags & (END | FINALIZE)) > 0
        generations, numbers = self.table.forward(slots, rows.lengths[places], is_final)
        ticket[places, Column.GENERATION] = generations
        ticket[places, Column.NUMBER] = numbers
        ticket[places, Column.FLAGS] = flags

    def _admit_special(
        self, rows: AudioRows, row: int, options: dict[int, ResolvedOptions], problem: StreamError | None
    ) -> int:
        """Admits a row by itself and returns its slot; options are checked before a start takes one."""
        stream_id, flags, given = rows.stream_ids[row], int(rows.flags[row]), rows.options.get(row, {})
        is_start = bool(flags & START)
        # A client gives each stream another number.
        if is_start and isinstance(stream_id, StreamNumber) and self.table.is_open(stream_id):
            raise StreamError(ErrorCode.REQUEST_INVALID, f"stream {stream_id!r} is open; accepted: START once")
        # First: of an id that is not open the client learns that, whatever else is wrong.
        slot = -1 if is_start else self.table.look_up(stream_id).slot
        try:
            if is_start:
                options[row] = self.parse_options(given)
            elif given:
                if not flags & FINALIZE or flags & END:
                    names = ", ".join(map(repr, sorted(given)))
                    message = f"{names} is not accepted after the start; accepted: with {FINALIZE_PARAMETER} alone"
                    raise StreamError(ErrorCode.OPTION_INVALID, message)
                options[row] = self._parse_change(given, self._options[slot])
            if problem is not None:
                raise problem
            self._check_row(rows, row, slot, options.get(row))
        except StreamError as error:
            # The ticket must not take the options of a rejected row to the decoder.
            options.pop(row, None)
            # A client that has sent END sends nothing else: the slot would be taken until the stream expires.
            if not is_start and (flags & END or error.code in _ENDING):
                self.table.close(stream_id, ended_by=error.code.name)
            raise StreamError(error.code, f"stream {stream_id!r}: {error.message}") from error
        if is_start:
            try:
                is_probe = bool(flags & END) and not rows.lengths[row]
                chosen = options[row]
                slot = self.table.open(stream_id, chosen.decoder, is_probe, chosen.has_speakers).slot
            except StreamError:
                del options[row]
                raise
        if row in options:
            # Without phrases: a list has thousands, and a change brings all of its own.
            self._options[slot] = options[row].model_copy(update={"phrases": ()})
        return slot

    def _check_row(self, rows: AudioRows, row: int, slot: int, options: ResolvedOptions | None) -> None:
        """StreamError for a row that its stream cannot take at this point; a start has options and no slot."""

    def _audio_problems(self, rows: AudioRows) -> dict[int, StreamError]:
        """By row: why its samples cannot be used."""
        most = self.max_request_samples
        problems = {
            row: f"{rows.lengths[row]} samples in one request, at most {most} ({MAX_REQUEST_S:g} s)"
            for row in (rows.lengths > most).nonzero()[0].tolist()
        }
        # NaN compares false, and a minimum or maximum with it is NaN: so each comparison also finds NaN.
        samples = rows.samples
        if len(samples) and not (samples.min() >= -MAX_MAGNITUDE and samples.max() <= MAX_MAGNITUDE):
            usable = np.abs(samples) <= MAX_MAGNITUDE
            ends = rows.lengths.cumsum()
            unusable = np.bincount(np.searchsorted(ends, np.flatnonzero(~usable), side="right"), minlength=len(ends))
            for row in np.flatnonzero(unusable).tolist():
                problems.setdefault(row, unusable_samples(int(unusable[row]), int(rows.lengths[row])))
        return {row: StreamError(ErrorCode.AUDIO_INVALID, message) for row, message in problems.items()}

    def process_rows(self, batch: list[AudioRows | StreamError]) -> list[FeatureRows | StreamError]:
        """Returns the replies to a batch of Triton requests, in order within each stream.

        A rejected row leaves its stream unchanged; a rejected start opens nothing, a rejected end closes. A request of
        one row that is rejected is answered with the row's error.
        """
        good = [rows for rows in batch if not isinstance(rows, StreamError)]
        if not good:
            return [rows for rows in batch if isinstance(rows, StreamError)]
        # All of it: while it runs, requests of other streams wait and must not count as missing.
        with self.table.step():
            whole = self._process(join_rows(good))
        chunk_ends = whole.rows[:, Column.CHUNKS].cumsum()
        answers: list[FeatureRows | StreamError] = []
        end = chunk_end = 0
        for rows in batch:
            if isinstance(rows, StreamError):
                answers.append(rows)
                continue
            start, end = end, end + len(rows.lengths)
            chunk_start, chunk_end = chunk_end, int(chunk_ends[end - 1])
            if not rows.is_batched and start in whole.errors:
                answers.append(whole.errors[start])
                continue
            options = {row - start: one for row, one in whole.options.items() if start <= row < end}
            errors = {row - start: one for row, one in whole.errors.items() if start <= row < end}
            mel = whole.mel[chunk_start:chunk_end]
            answers.append(FeatureRows(whole.rows[start:end], mel, options, errors, rows.is_batched))
        return answers

    def _process(self, rows: AudioRows) -> FeatureRows:
        """The replies to the rows of all requests of a batch."""
        raise NotImplementedError


def unusable_samples(count: int, of: int) -> str:
    """The problem with samples beyond `MAX_MAGNITUDE`, NaN included."""
    return (
        f"{count} of {of} samples are not finite or beyond {MAX_MAGNITUDE:g}; "
        "expected float32 in -1 .. 1 (int16 divided by 32768)"
    )
