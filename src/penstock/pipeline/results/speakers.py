"""Speakers of words: the speaker model's frames of a stream, and its results, which wait for them.

Time is the audio's alone: a label depends neither on the requests' sizes nor on when they came.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.results.results import StreamResult, joined, with_earlier
from penstock.pipeline.results.words import Word
from penstock.speakers.turns import speakers_of

FRAME_MS = 10
_KEPT_MS = 30_000
"""Frames that are kept before the first word of a segment that goes on: its alternatives may begin earlier."""
LOST, NO_COPY = -1, -1


class RowFrames(NamedTuple):
    """Frames of the speaker model that came with one row of a stream."""

    first: int
    """Number in the stream of the first of them; `LOST`: the stream goes on without speakers."""
    decided: np.ndarray
    """[n, K] float32"""
    copied: np.ndarray | None = None
    """[m, K] float32, those after them that only a copy of the stream's state has, up to the end of a segment that the
    client ends; None elsewhere. They come again, with their look-ahead."""


class SpeakerFrames(NamedTuple):
    """Frames of the R rows of a request, as they go from `speakers` to `decoder`."""

    probabilities: np.ndarray
    """[N, K] float32, of all rows, one row after another."""
    rows: np.ndarray
    """[R, 3] int64: `RowFrames.first`, and how many are decided and copied, `NO_COPY` for None."""

    @classmethod
    def of(cls, rows: Sequence[RowFrames], speakers: int) -> "SpeakerFrames":
        """Joins rows."""
        parts = [np.zeros((0, speakers), np.float32)]
        numbers = np.full((len(rows), 3), NO_COPY, np.int64)
        for number, row in enumerate(rows):
            parts.append(row.decided)
            numbers[number, :2] = row.first, len(row.decided)
            if row.copied is not None:
                parts.append(row.copied)
                numbers[number, 2] = len(row.copied)
        return cls(np.concatenate(parts), numbers)

    def problem(self, rows: int) -> StreamError | None:
        """Why these are no frames of a request of this many rows."""
        shape, counts = self.probabilities.shape, self.rows[..., 1:].clip(0)
        if self.rows.shape == (rows, 3) and len(shape) == 2 and counts.sum() == len(self.probabilities):
            return None
        message = f"speaker frames {list(shape)} of rows {list(self.rows.shape)} are not those of the ticket"
        return StreamError(ErrorCode.REQUEST_INVALID, message)

    def by_row(self) -> list[RowFrames]:
        """Splits the rows."""
        counts = self.rows[:, 1:].clip(0)
        parts = np.split(self.probabilities, counts.ravel().cumsum()[:-1])
        return [
            RowFrames(first, decided, None if copies == NO_COPY else copied)
            for (first, _, copies), decided, copied in zip(self.rows.tolist(), parts[::2], parts[1::2], strict=True)
        ]


class StreamSpeakers:
    """One stream that asked for speakers: the frames of its open segments, and its results that wait for them."""

    def __init__(self, most: int | None):
        """most: only the first ones that spoke are chosen."""
        self._most = most
        self._first = 0
        """Number of the oldest frame that is kept."""
        self._blocks: list[np.ndarray] = []
        self._count = 0
        self._copies: deque[tuple[int, np.ndarray]] = deque()
        """Frames of ends by the client that are to come, and the numbers of their first ones."""
        self._is_lost = False
        self._words: list[Word] = []
        """The segment's words that have been reported."""
        self._held: StreamResult | None = None

    def add(self, frames: RowFrames | None) -> None:
        """Takes those of the next row; None where it did not come by the speaker model."""
        # A decoder can be called directly, with frames of any width: they must not fail the batch.
        is_next = frames is not None and frames.first == self._first + self._count
        if frames is None or not is_next or len({block.shape[1] for block in (*self._blocks[:1], frames.decided)}) > 1:
            self._is_lost = True
        if self._is_lost or frames is None:
            self._blocks, self._count = [], 0
            self._copies.clear()
            return
        if len(frames.decided):
            self._blocks.append(frames.decided.copy())  # the request's memory is Triton's
            self._count += len(frames.decided)
        if frames.copied is not None:
            # Numbered as the next decided frames: they come again as such.
            self._copies.append((self._first + self._count, frames.copied.copy()))

    def place(self, result: StreamResult | None, is_forced: bool, is_over: bool) -> StreamResult | None:
        """Takes the result of a row, if any, and returns what is due: results before a final one that has to wait.

        A final result has the speaker of each word of its segment. is_forced: the client has ended the segment with
        this row; is_over: no more audio comes. Then nothing waits.
        """
        if self._held is not None:
            # Of the rows that waited, partial results of one segment become one.
            result = self._held if result is None else _joined(self._held, result)
            self._held = None
        # Also where there is no result: each end by the client has a copy of its own.
        if is_forced and self._copies:
            first, copied = self._copies.popleft()
            known = [*self._kept(first), copied]
        else:
            known = self._blocks
        if result is None:
            return None
        entries = [replace(entry, earlier=()) if entry.earlier else entry for entry in result.entries]
        due = 0
        for entry in entries:
            if not (is_forced or is_over or self._is_known(entry)):
                break
            entries[due] = self._placed(entry, known)
            due += 1
        self._held = with_earlier(entries[due:]) if due < len(entries) else None
        if not is_over:  # then a poll reports the share of a file's work, which is ahead of its words
            self._forget(result.audio_processed_s)
        return with_earlier(entries[:due]) if due else None

    def _is_known(self, result: StreamResult) -> bool:
        """True for a partial result, and where the frames cover the last word."""
        if not result.is_final or self._is_lost:
            return True
        words = [*self._words, *result.words, *(word for one in result.alternatives for word in one.words)]
        return max((word.end_ms for word in words), default=0) <= FRAME_MS * (self._first + self._count)

    def _placed(self, result: StreamResult, known: list[np.ndarray]) -> StreamResult:
        self._words += result.words
        if not result.is_final:
            return result
        frames = np.concatenate(known)[:, : self._most] if known and not self._is_lost else None
        words, self._words = self._words, []
        alternatives = tuple(replace(one, speakers=self._of(one.words, frames)) for one in result.alternatives)
        return replace(result, word_speakers=self._of(words, frames), alternatives=alternatives)

    def _of(self, words: Iterable[Word], frames: np.ndarray | None) -> tuple[int, ...]:
        """The speaker of each word, from 1; 0 where none is known."""
        times = [(word.start_ms, word.end_ms) for word in words]
        if frames is None or not len(frames):
            return (0,) * len(times)
        return tuple(speakers_of(times, frames, FRAME_MS, FRAME_MS * self._first))

    def _kept(self, end: int) -> list[np.ndarray]:
        """The decided frames before that number."""
        return [np.concatenate(self._blocks)[: max(end - self._first, 0)]] if self._blocks else []

    def _forget(self, processed_s: float) -> None:
        """Frees the frames of segments that are over; the newest one is kept."""
        held = () if self._held is None else self._held.entries
        words = [*self._words, *(word for entry in held for word in entry.words)]
        begin_ms = min((word.start_ms for word in words), default=1000 * processed_s)
        begin = (int(begin_ms) - _KEPT_MS) // FRAME_MS
        if self._copies:
            # An end that is to come needs the frames before its copy.
            begin = min(begin, self._copies[0][0] - 1)
        # Not with each row: to drop frames copies those that stay.
        if (gone := min(begin - self._first, self._count - 1)) > self._count // 2:
            self._blocks = [np.concatenate(self._blocks)[gone:].copy()]
            self._first, self._count = self._first + gone, self._count - gone


def _joined(before: StreamResult, after: StreamResult) -> StreamResult:
    result = joined([before, after])
    assert isinstance(result, StreamResult)
    return result


def frames_of_rows(
    requests: Sequence[SpeakerFrames | None], ticket_of: np.ndarray, row_of: np.ndarray
) -> Mapping[int, RowFrames]:
    """By row of a batch, the frames that came with it, of requests by `asr_batch_speakers`; None: another ensemble's.

    ticket_of, row_of: [R] int64, of each row of the batch its request and its row there.
    """
    if all(one is None for one in requests):
        return {}
    split = [None if one is None else one.by_row() for one in requests]
    origins = enumerate(zip(ticket_of.tolist(), row_of.tolist(), strict=True))
    return {place: rows[row] for place, (ticket, row) in origins if (rows := split[ticket]) is not None}
